//! The reasons to reject a pipeline's plan, each with a message that names the fault and the way to fix it.

use std::fmt;

use super::deadlock::Deadlock;
use super::excerpt::Excerpt;
use super::sequence::fault;
use crate::plan::{Action, Compute};

/// The reason why [`check`](crate::check()) rejects a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The error for a plan without any actions (forwards and backwards).
    Empty,
    /// The error for a plan in which a worker has no actions (forwards and backwards).
    IdleWorker {
        /// The index, from 0, of the worker that has no actions in the plan.
        worker: usize,
    },
    /// The error for a plan that assigns actions of one stage to two workers. A stage must run on one worker only.
    TwoWorkers {
        /// The index, from 0, of the stage that the plan assigns to two workers.
        stage: usize,
        /// The indices of the two workers to which the plan assigns the same stage.
        workers: (usize, usize),
        /// An excerpt of the plan for the error message about a stage on two workers. It shows each worker's first
        /// action of this stage, with the actions next to it.
        excerpt: Excerpt,
    },
    /// The error for a plan in which a stage does not run one forward and then one backward on a micro-batch. The
    /// backward may be split into an input gradient and a weight gradient.
    Sequence {
        /// The index, from 0, of the stage that lacks, repeats or misorders a forward or backward.
        stage: usize,
        /// The index, from 0, of the micro-batch on which a stage lacks, repeats or misorders a forward or backward.
        micro_batch: usize,
        /// The kinds of computation that the plan has for a stage and a micro-batch, in order. Valid plans have `F B`
        /// (forward, backward) or `F I W` (forward, input gradient, weight gradient).
        found: Vec<Compute>,
        /// An excerpt of the plan for the error message. It shows the faulty stage's first action on the micro-batch.
        /// If there is none, it shows the stage's first action on a later micro-batch.
        excerpt: Excerpt,
    },
    /// The error for a plan that deadlocks: its workers would wait for each other forever.
    Deadlock {
        /// The channel capacity at which the plan deadlocks: the number of micro-batches that a channel between two
        /// stages can store.
        capacity: usize,
        /// The deadlock of the plan: the blocked workers, with the instruction at which each of them waits.
        deadlock: Deadlock,
        /// The least channel capacity at which the plan completes; `None` if it deadlocks at every capacity. The
        /// channel capacity is the number of micro-batches that a channel between two stages can store.
        least_capacity: Option<usize>,
        /// An excerpt of the plan for the error message: the action at which each worker is blocked, and the actions
        /// next to it.
        excerpt: Excerpt,
    },
    /// The error for a plan in which a worker has more live micro-batches than the caller's limit. A micro-batch is
    /// live from its forward until its weight gradient is done.
    TooManyLive {
        /// The index, from 0, of the worker that exceeds the limit on live micro-batches.
        worker: usize,
        /// The forward at which a worker first exceeds the limit on live micro-batches.
        action: Action,
        /// The caller's limit on the number of live micro-batches of a worker. A micro-batch is live from its forward
        /// until its weight gradient is done.
        limit: usize,
        /// The lowest limit on live micro-batches that the plan does not exceed: the peak over all workers.
        needed: usize,
        /// An excerpt of the plan for the error message: the forward that exceeds the limit on live micro-batches, and
        /// the actions next to it.
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
