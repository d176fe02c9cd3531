//! The reasons to reject a plan.

use std::fmt;

use super::deadlock::Deadlock;
use super::excerpt::Excerpt;
use super::sequence::fault;
use crate::plan::{Action, Compute};

/// The reason to reject a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The plan has no actions.
    Empty,
    /// A worker has no actions.
    IdleWorker {
        /// The worker.
        worker: usize,
    },
    /// A stage has actions on two workers.
    TwoWorkers {
        /// The stage.
        stage: usize,
        /// The two workers.
        workers: (usize, usize),
        /// The plan around the stage's first action on each worker.
        excerpt: Excerpt,
    },
    /// A stage does not run exactly F B, or F I W, on a micro-batch.
    Sequence {
        /// The stage.
        stage: usize,
        /// The micro-batch.
        micro_batch: usize,
        /// The computes in the plan, in order.
        found: Vec<Compute>,
        /// The plan around the fault.
        excerpt: Excerpt,
    },
    /// The workers would wait for each other forever.
    Deadlock {
        /// The channel capacity, in micro-batches.
        capacity: usize,
        /// The blocked workers.
        deadlock: Deadlock,
        /// The least capacity at which the plan completes; `None` if every capacity deadlocks.
        least_capacity: Option<usize>,
        /// The plan around the blocked actions.
        excerpt: Excerpt,
    },
    /// A worker would hold more live micro-batches than the limit.
    TooManyLive {
        /// The worker.
        worker: usize,
        /// The forward that exceeds the limit.
        action: Action,
        /// The limit in live micro-batches.
        limit: usize,
        /// The least limit that the plan respects on every worker.
        needed: usize,
        /// The plan around the forward.
        excerpt: Excerpt,
    },
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the plan has no actions; write at least `0F0,0B0`"),
            Self::IdleWorker { worker } => {
                write!(f, "worker {worker} has no actions; give every worker at least one stage")
            }
            Self::TwoWorkers { stage, workers: (a, b), excerpt } => write!(
                f,
                "stage {stage} has actions on worker {a} and on worker {b}; keep all actions of a stage on one \
                 worker{excerpt}"
            ),
            Self::Sequence { stage, micro_batch, found, excerpt } => {
                let fault = fault(*stage, *micro_batch, found);
                let found: Vec<_> = found.iter().map(|compute| compute.letter().to_string()).collect();
                let found = if found.is_empty() { "nothing".to_owned() } else { format!("`{}`", found.join(" ")) };
                write!(
                    f,
                    "stage {stage} does {found} to micro-batch {micro_batch}; it must do `F B` or `F I W`: {fault}{excerpt}"
                )
            }
            Self::Deadlock { capacity, deadlock, least_capacity, excerpt } => {
                write!(f, "the plan deadlocks at channel capacity {capacity}: {deadlock}; ")?;
                match least_capacity {
                    Some(least) => write!(f, "raise the channel capacity to {least}{excerpt}"),
                    None => write!(f, "it deadlocks at every capacity, so put its actions into another order{excerpt}"),
                }
            }
            Self::TooManyLive { worker, action, limit, needed, excerpt } => write!(
                f,
                "worker {worker} would hold {} live micro-batches at {action}, but the limit is {limit}; raise the limit to \
                 {needed}, or use a schedule that begins its backwards earlier{excerpt}",
                limit + 1
            ),
        }
    }
}

impl std::error::Error for CheckError {}
