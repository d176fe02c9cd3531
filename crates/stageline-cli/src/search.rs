//! `stageline search`: the plan with the least simulated step.

use std::path::PathBuf;

use clap::Args;
use stageline_schedule::{Memory, best};

use crate::costs::{CostFlags, MemoryFlags};
use crate::output::write_to;
use crate::report::{Report, ReportFlags};
use crate::shape::not_too_large;

/// Finds the plan with the least simulated step among all schedules and automatic ones, within the memory.
///
/// Schedules with chunks cut every stage in 2, or in up to 4 where they leave the choice. The bound is what no plan with such
/// placements can beat.
#[derive(Args)]
pub(crate) struct Flags {
    /// P: how many stages, one a worker
    #[arg(long)]
    stages: usize,
    /// M: how many micro-batches a step
    #[arg(long)]
    micro_batches: usize,
    /// The plan as PyTorch reads it, a row a worker
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
    let (costs, memory) = (flags.costs.costs(flags.stages, 1)?, flags.memory.memory(flags.stages, 1)?);
    let unlimited = || Memory::unlimited(flags.stages);
    let found = best(flags.micro_batches, &costs, &memory.unwrap_or_else(unlimited))?;
    if let Some(path) = &flags.csv {
        write_to(path, &found.checked.plan().to_csv())?;
    }
    let memory = flags.memory.memory(flags.stages, found.costs.stages() / flags.stages)?;
    let report = Report::new(&found.checked, &found.costs, &found.timeline, found.bound, memory.as_ref());
    report.found(found.schedule, &found.checked).give(&found.timeline, &flags.report)
}
