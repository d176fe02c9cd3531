//! `stageline simulate`: simulates a step of a plan and prints its time, bubble, idle time by cause and memory.

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use stageline_schedule::{Memory, check, lower_bound, simulate};

use crate::costs::{CostFlags, MemoryFlags};
use crate::output::check_keeps;
use crate::plan_flags::{Shape, read_plan};
use crate::report::{Report, ReportFlags, exact};

/// Simulates a schedule, or a plan from a file, and prints its step time, bubble, idle time by cause and memory.
///
/// The printed bound is a lower bound on the step time of any plan with the same placement of stages on workers. Two
/// bubbles are printed. The bubble of the total is the idle share of the total stage time (workers x step time). The
/// bubble by span is the idle share of the longest span from a worker's first forward or backward pass to its last
/// (arXiv:2401.10241). The idle time attributed to a cause is the time that would be saved without this cause: with
/// free transfers, equal stages, equal optimizer steps, or without filling and draining the pipeline.
#[derive(Args)]
#[command(override_usage = "stageline simulate [OPTIONS] --stages <P> --micro-batches <M>\n       \
                            stageline simulate [OPTIONS] --plan <FILE>")]
pub(crate) struct Flags {
    #[command(flatten)]
    shape: Option<Shape>,
    /// CSV file of a plan to simulate instead of a schedule, as written by `plan --csv` or PyTorch; `-` reads the
    /// standard input. The other flags give costs for its stages. A single time or memory size is a worker's total and
    /// is divided evenly among its stages. A list has one entry for each stage; if all P workers have V stages, it may
    /// have P entries, each the total of V consecutive stages. Transfers are not divided: a list of P entries has one
    /// for each worker in --transfer, and one for each link in --bytes and --bandwidth
    #[arg(long, value_name = "FILE", conflicts_with = "Shape", required_unless_present = "Shape")]
    plan: Option<PathBuf>,
    /// Number of micro-batches that a channel between two stages can hold [default: all micro-batches of a step]
    #[arg(long)]
    capacity: Option<usize>,
    #[command(flatten)]
    costs: CostFlags,
    #[command(flatten)]
    memory: MemoryFlags,
    #[command(flatten)]
    report: ReportFlags,
}

pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let plan = match (&flags.plan, &flags.shape) {
        (Some(path), _) => {
            check_keeps(path, "--svg", flags.report.svg.as_deref())?;
            read_plan(path)?
        }
        (None, Some(shape)) => shape.plan()?,
        (None, None) => anyhow::bail!("give --stages and --micro-batches, or a --plan"),
    };
    let capacity = flags.capacity.unwrap_or(plan.micro_batches());
    let checked = check(plan, capacity)?;
    let plan = checked.plan();
    let placement = checked.placement();
    let (costs, memory) = (flags.costs.costs(&placement)?, flags.memory.memory(&placement)?);
    if let Some(memory) = &memory {
        let peak = plan.peak_memory(&memory.stages).into_iter().fold(0.0, f64::max);
        ensure!(
            memory.suffices(plan),
            "the plan needs {} bytes on a worker, and the limit is {}; raise it, or find another plan with `search`",
            exact(peak),
            memory.limit
        );
    }
    let timeline = simulate(&checked, &costs);
    let unlimited = Memory::unlimited(plan.stages());
    let bound = lower_bound(&placement, plan.micro_batches(), &costs, memory.as_ref().unwrap_or(&unlimited));
    Report::new(&checked, &costs, &timeline, bound, memory.as_ref()).give(&timeline, &flags.report)
}
