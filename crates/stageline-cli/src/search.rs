//! `stageline search`: finds the plan with the shortest simulated step within a memory limit.

use std::path::PathBuf;

use clap::Args;
use stageline_report::Measured;
use stageline_schedule::{Memory, best};

use crate::costs::{CostFlags, MemoryFlags};
use crate::output::write_to;
use crate::report::{Report, ReportFlags};
use crate::run::read;
use crate::shape::not_too_large;

/// Finds the plan with the shortest simulated step within a memory limit, among all schedules and automatically
/// generated plans.
///
/// Schedules with chunks split every stage into 2 chunks, or into 2 to 4 if the number of chunks can be chosen. The
/// printed bound is a lower bound on the step time of any plan with the same placement of stages on workers.
#[derive(Args)]
pub(crate) struct Flags {
    /// Number of stages P, one on each worker
    #[arg(long)]
    stages: usize,
    /// File with the log of a run, which a training program writes with `--log`. The costs of stages are computed from
    /// the log, with the most even partition of the model's layers into P stages
    #[arg(long, value_name = "FILE", conflicts_with_all = ["forward", "input_grad", "weight_grad", "backward", "optimizer"])]
    from: Option<PathBuf>,
    /// Number of micro-batches M in a step
    #[arg(long)]
    micro_batches: usize,
    /// CSV file to which the found plan is written in PyTorch's format, one row for each worker
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    costs: CostFlags,
    #[command(flatten)]
    memory: MemoryFlags,
    #[command(flatten)]
    report: ReportFlags,
}

pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    not_too_large(flags.stages, flags.micro_batches)?;
    let costs = match &flags.from {
        Some(path) => {
            let measured = Measured::of(&read(path)?)?;
            measured.stage_costs(&measured.balanced(flags.stages)?)
        }
        None => flags.costs.costs(flags.stages, 1)?,
    };
    let memory = flags.memory.memory(flags.stages, 1)?;
    let unlimited = || Memory::unlimited(flags.stages);
    let found = best(flags.micro_batches, &costs, &memory.unwrap_or_else(unlimited), usize::MAX)?;
    if let Some(path) = &flags.csv {
        write_to(path, &found.checked.plan().to_csv())?;
    }
    let memory = flags.memory.memory(flags.stages, found.costs.stages() / flags.stages)?;
    let report = Report::new(&found.checked, &found.costs, &found.timeline, found.bound, memory.as_ref());
    report.found(found.schedule, &found.checked).give(&found.timeline, &flags.report)
}
