//! The error of validating a plan, with a message that says what is wrong and how to fix it.

use std::fmt;

use super::deadlock::Deadlock;
use super::excerpt::Excerpt;
use super::sequence::fault;
use crate::plan::{Action, Compute};

/// The reason why [`check`](crate::check()) rejects a plan. The message says what is wrong and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The plan has no actions (forward and backward passes). A plan needs at least `0F0,0B0`: one forward and one
    /// backward pass.
    Empty,
    /// A worker of the plan has no actions (forward and backward passes). Give every worker at least one stage.
    IdleWorker {
        /// Zero-based index of the worker that has no actions in the plan.
        worker: usize,
    },
    /// The plan assigns actions of one stage to two workers. Keep all actions of a stage on one worker.
    TwoWorkers {
        /// Zero-based index of the stage that the plan assigns to two workers.
        stage: usize,
        /// Zero-based indices of the two workers that the plan assigns the same stage to.
        workers: (usize, usize),
        /// Excerpt of the plan for the error message. It shows each of the two workers' first action of the stage that
        /// both have, with the actions next to it.
        excerpt: Excerpt,
    },
    /// A stage does not run exactly one forward pass and then one backward pass on a micro-batch: an action is missing,
    /// repeated or out of order. The backward pass may be split into an input gradient and a weight gradient.
    Sequence {
        /// Zero-based index of the stage that has a missing, repeated or misordered forward or backward pass.
        stage: usize,
        /// Zero-based index of the micro-batch whose forward or backward pass is missing, repeated or misordered on a
        /// stage.
        micro_batch: usize,
        /// Passes that the plan has for the faulty pair of stage and micro-batch, in the plan's order. A valid plan has
        /// `F B` (forward, backward) or `F I W` (forward, input gradient, weight gradient).
        found: Vec<Compute>,
        /// Excerpt of the plan for the error message. It shows the faulty stage's first action on the faulty
        /// micro-batch. If the plan has none, it shows the stage's first action on a later micro-batch.
        excerpt: Excerpt,
    },
    /// The plan deadlocks: its workers would wait for each other forever. Raise the channel capacity to
    /// `least_capacity`, or reorder the plan's actions if that is `None`.
    Deadlock {
        /// Channel capacity at which the plan was checked and deadlocks: the number of micro-batches that each channel
        /// between two stages can hold.
        capacity: usize,
        /// Deadlock that the check found: the blocked workers, each with the send or receive that it cannot finish.
        deadlock: Deadlock,
        /// Smallest channel capacity (micro-batches that each channel between two stages can hold) at which the plan
        /// does not deadlock. `None` if it deadlocks at every capacity.
        least_capacity: Option<usize>,
        /// Excerpt of the plan for the error message: for each blocked worker, the action at which it is blocked, and
        /// the actions next to that action.
        excerpt: Excerpt,
    },
    /// A worker has more live micro-batches than the caller's limit. Raise the limit to `needed`, or use a schedule
    /// that begins its backward passes earlier. A micro-batch is live from its forward pass until its weight gradient
    /// is done.
    TooManyLive {
        /// Zero-based index of the worker that exceeds the limit on live micro-batches.
        worker: usize,
        /// The worker's first forward pass that exceeds the limit on live micro-batches.
        action: Action,
        /// Caller's limit on the number of live micro-batches of each worker. A micro-batch is live from its forward
        /// pass until its weight gradient is done.
        limit: usize,
        /// Lowest limit on live micro-batches that the plan satisfies: the peak of the worker with the most live
        /// micro-batches.
        needed: usize,
        /// Excerpt of the plan for the error message: the forward pass that exceeds the limit on live micro-batches,
        /// and the actions next to it.
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
