//! `stageline search`: the plan with the least simulated step.

use std::path::PathBuf;

use clap::Args;
use stageline_schedule::best;

use crate::costs::CostFlags;
use crate::report::{Report, ReportFlags, write_to};

/// Finds the plan with the least simulated step among all schedules and automatic ones, within the memory.
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
    report: ReportFlags,
}

pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let (costs, memory) = (flags.costs.costs(flags.stages, 1)?, flags.costs.memory(flags.stages, 1)?);
    let found = best(flags.micro_batches, &costs, &memory)?;
    if let Some(path) = &flags.csv {
        write_to(path, &found.checked.plan().to_csv())?;
    }
    let bytes = flags.costs.bytes(flags.stages, found.costs.stages() / flags.stages)?;
    let report = Report::new(&found.checked, &found.costs, &found.timeline, found.bound, bytes.as_deref());
    report.of_schedule(found.schedule).give(&found.timeline, &flags.report)
}
