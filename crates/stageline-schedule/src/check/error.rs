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
    /// The rejected plan has no actions (forwards and backwards) at all.
    Empty,
    /// A worker of the rejected plan has no actions (forwards and backwards).
    IdleWorker {
        /// The index, from 0, of the worker to which the plan assigns no actions (forwards and backwards).
        worker: usize,
    },
    /// The plan assigns actions of one stage to two workers, although a stage must run on one worker only.
    TwoWorkers {
        /// The index, from 0, of the stage whose actions the plan assigns to two workers.
        stage: usize,
        /// The indices of the two workers to which the plan assigns actions of one stage, although a stage must run on
        /// one worker only.
        workers: (usize, usize),
        /// The excerpt of the plan that the error message shows: for each of the two workers, its first action of the
        /// stage and the actions next to it.
        excerpt: Excerpt,
    },
    /// A stage of the plan does not run exactly one forward and one backward on a micro-batch, in this order. The
    /// backward is whole, or an input gradient followed by a weight gradient.
    Sequence {
        /// The index, from 0, of the stage whose forward or backward on a micro-batch is missing, repeated or out of
        /// order.
        stage: usize,
        /// The index, from 0, of the micro-batch on which the stage's forward or backward is missing, repeated or out
        /// of order.
        micro_batch: usize,
        /// The kinds of computation (F, B, I or W) that the plan has for the stage and the micro-batch, in order,
        /// instead of the required `F B` or `F I W`.
        found: Vec<Compute>,
        /// The excerpt of the plan that the error message shows: the stage's first action on the micro-batch, or, if
        /// there is none, its first action on a later micro-batch, and the actions next to it.
        excerpt: Excerpt,
    },
    /// The plan deadlocks: its workers would wait for each other forever.
    Deadlock {
        /// The channel capacity at which the plan deadlocks: the number of micro-batches that a channel between two
        /// stages can store.
        capacity: usize,
        /// The workers that are blocked in the deadlock, with the instruction at which each of them waits.
        deadlock: Deadlock,
        /// The least number of micro-batches that each channel between two stages must be able to store so that the
        /// plan completes; `None` if it deadlocks at every capacity.
        least_capacity: Option<usize>,
        /// The excerpt of the plan that the error message shows: for each blocked worker, the action at which it is
        /// blocked and the actions next to it.
        excerpt: Excerpt,
    },
    /// A worker would hold more live micro-batches than the limit that the caller set. A micro-batch is live from its
    /// forward until its weight gradient is done.
    TooManyLive {
        /// The index, from 0, of the worker that would exceed the limit on live micro-batches (forwarded, with the
        /// weight gradient not yet done).
        worker: usize,
        /// The forward at which the worker would exceed the limit on live micro-batches (forwarded, with the weight
        /// gradient not yet done).
        action: Action,
        /// The largest number of live micro-batches (forwarded, with the weight gradient not yet done) that a worker
        /// may have.
        limit: usize,
        /// The peak number of live micro-batches (forwarded, with the weight gradient not yet done) of any worker of
        /// the plan: the lowest limit that the plan would not exceed.
        needed: usize,
        /// The excerpt of the plan that the error message shows: the forward that exceeds the limit on live
        /// micro-batches, and the actions next to it.
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
