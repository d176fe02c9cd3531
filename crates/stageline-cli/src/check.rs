//! `stageline check`: checks that a plan from a CSV file can run.

use std::path::PathBuf;

use clap::Args;
use stageline_schedule::check;

use crate::output::print;
use crate::plan_flags::read_plan;

/// Checks that a plan is complete, in order, free of deadlock and within a limit of live micro-batches. A micro-batch
/// is live from its forward pass to the end of its backward pass. For a rejected plan, the error names the stage and
/// the action, and shows the plan around it.
#[derive(Args)]
pub(crate) struct Flags {
    /// CSV file of the plan, as written by `plan --csv` or PyTorch; `-` reads the standard input
    plan: PathBuf,
    /// Number of micro-batches that a channel between two stages can hold; with 0, a sender waits until the receiver
    /// takes the tensor
    #[arg(long, default_value_t = 1)]
    capacity: usize,
    /// Limit of live micro-batches on a worker, counted over all its stages. A micro-batch is live from its forward
    /// pass to the end of its backward pass
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
