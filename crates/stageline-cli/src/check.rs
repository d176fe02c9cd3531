//! `stageline check`: whether a plan can run.

use std::path::PathBuf;

use clap::Args;
use stageline_schedule::check;

use crate::output::print;
use crate::shape::read_plan;

/// Checks a plan: complete, in order, free of deadlock, within a number of live micro-batches. A plan that is refused is
/// an error that names the stage and the action, and shows the plan around it.
#[derive(Args)]
pub(crate) struct Flags {
    /// The plan as CSV, as `plan --csv` or PyTorch writes it; `-` is the standard input
    plan: PathBuf,
    /// How many micro-batches a channel between two stages holds; 0 is a rendezvous
    #[arg(long, default_value_t = 1)]
    capacity: usize,
    /// The most micro-batches that may be live on a worker, those of all its stages added up
    #[arg(long)]
    live: Option<usize>,
}

pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let mut checked = check(read_plan(&flags.plan)?, flags.capacity)?;
    if let Some(live) = flags.live {
        checked = checked.at_most_live(live)?;
    }
    let plan = checked.plan();
    print(&format!(
        "accepted at channel capacity {} (the least is {}): {} workers, {} stages, {} micro-batches, at most {} live on a worker\n",
        checked.capacity(),
        checked.least_capacity(),
        plan.workers(),
        plan.stages(),
        plan.micro_batches(),
        plan.peak_live().into_iter().max().unwrap_or(0)
    ))
}
