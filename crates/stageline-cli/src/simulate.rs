//! `stageline simulate`: what a plan would take.

use std::path::PathBuf;

use clap::Args;
use stageline_schedule::{Plan, check, lower_bound, simulate};

use crate::costs::CostFlags;
use crate::report::{Report, ReportFlags};
use crate::shape::{Shape, read_plan};

/// Simulates a schedule, or a plan from a file: its step, bubble, idle time by cause and memory.
#[derive(Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    shape: Option<Shape>,
    /// A plan as CSV, as `plan --csv` or PyTorch writes it, instead of a schedule; `-` is the standard input
    #[arg(long, value_name = "FILE", conflicts_with = "Shape", required_unless_present = "Shape")]
    plan: Option<PathBuf>,
    /// How many micro-batches a channel between two stages holds [default: all]
    #[arg(long)]
    capacity: Option<usize>,
    #[command(flatten)]
    costs: CostFlags,
    #[command(flatten)]
    report: ReportFlags,
}

pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let plan = match (&flags.plan, &flags.shape) {
        (Some(path), _) => read_plan(path)?,
        (None, Some(shape)) => shape.plan()?,
        (None, None) => anyhow::bail!("give --stages and --micro-batches, or a --plan"),
    };
    let capacity = flags.capacity.unwrap_or(plan.micro_batches());
    let checked = check(plan, capacity)?;
    let (workers, chunks) = cut(checked.plan());
    let (costs, memory) = (flags.costs.costs(workers, chunks)?, flags.costs.memory(workers, chunks)?);
    let timeline = simulate(&checked, &costs);
    let bound = lower_bound(&checked.placement(), checked.plan().micro_batches(), &costs, &memory);
    let bytes = flags.costs.bytes(workers, chunks)?;
    Report::new(&checked, &costs, &timeline, bound, bytes.as_deref()).give(&timeline, &flags.report)
}

/// P and V of a plan; where its stages are not spread evenly, each counts as a whole one.
fn cut(plan: &Plan) -> (usize, usize) {
    let (workers, stages) = (plan.workers(), plan.stages());
    if stages.is_multiple_of(workers) { (workers, stages / workers) } else { (stages, 1) }
}
