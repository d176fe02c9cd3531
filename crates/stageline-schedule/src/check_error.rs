//! Why a plan is refused.

use std::fmt;

use crate::action::{Action, Compute};
use crate::deadlock::Deadlock;
use crate::excerpt::Excerpt;
use crate::progress::fault;

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The plan has no actions.
    Empty,
    /// A worker has nothing to do.
    IdleWorker {
        /// The worker.
        worker: usize,
    },
    /// A stage stands on two workers.
    TwoWorkers {
        /// The stage.
        stage: usize,
        /// The workers that have actions of it.
        workers: (usize, usize),
        /// The plan around the first of them on each.
        excerpt: Excerpt,
    },
    /// A stage does not do exactly F B, or F I W, to a micro-batch.
    Sequence {
        /// The stage.
        stage: usize,
        /// The micro-batch.
        micro_batch: usize,
        /// What it does instead, in order.
        found: Vec<Compute>,
        /// The plan around it.
        excerpt: Excerpt,
    },
    /// The workers would wait for each other.
    Deadlock {
        /// The channel capacity, in micro-batches.
        capacity: usize,
        /// Who waits for what.
        deadlock: Deadlock,
        /// The least capacity at which the plan completes, if any does.
        least_capacity: Option<usize>,
        /// The plan around the blocked actions.
        excerpt: Excerpt,
    },
    /// A worker would hold more live micro-batches than it may.
    TooManyLive {
        /// The worker.
        worker: usize,
        /// The forward that is one too many.
        action: Action,
        /// How many it may hold.
        limit: usize,
        /// How many the plan needs on some worker.
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
                    None => write!(f, "it does at any capacity, so put its actions into another order{excerpt}"),
                }
            }
            Self::TooManyLive { worker, action, limit, needed, excerpt } => write!(
                f,
                "worker {worker} would hold {} live micro-batches at {action}, and may hold {limit}; raise the limit to \
                 {needed}, or take a schedule that begins its backwards earlier{excerpt}",
                limit + 1
            ),
        }
    }
}

impl std::error::Error for CheckError {}
