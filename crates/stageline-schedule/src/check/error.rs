//! The error of the check of a plan, with a message that names the fault and how to fix it.

use std::fmt;

use super::deadlock::Deadlock;
use super::excerpt::Excerpt;
use super::sequence::fault;
use crate::plan::{Action, Compute};

/// Why [`check`](crate::check()) rejects a plan. The message names the fault and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The error for a plan without any actions (forward and backward passes).
    Empty,
    /// The error for a plan with a worker that has no actions (forward and backward passes).
    IdleWorker {
        /// The index, from 0, of the worker that has no actions in the plan.
        worker: usize,
    },
    /// The error for a plan that assigns actions of one stage to two workers. A stage must run on one worker only.
    TwoWorkers {
        /// The index, from 0, of the stage that the plan assigns to two workers.
        stage: usize,
        /// The indices, from 0, of the two workers to which the plan assigns the same stage.
        workers: (usize, usize),
        /// An excerpt of the plan for the error message about a stage on two workers. It shows each worker's first
        /// action of this stage, with the actions next to it.
        excerpt: Excerpt,
    },
    /// The error for a plan where a stage does not run one forward pass and then one backward pass on a micro-batch.
    /// The backward pass may be split into an input gradient and a weight gradient.
    Sequence {
        /// The index, from 0, of the stage that lacks, repeats or misorders a forward or backward pass.
        stage: usize,
        /// The index, from 0, of the micro-batch on which a stage lacks, repeats or misorders a forward or backward
        /// pass.
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
        /// The channel capacity for which the plan was checked, and with which it deadlocks: the number of
        /// micro-batches that a channel between two stages can store.
        capacity: usize,
        /// The deadlock of the plan: the blocked workers, each with the send or receive that it cannot finish.
        deadlock: Deadlock,
        /// The least channel capacity with which the plan completes; `None` if it deadlocks with every capacity. The
        /// channel capacity is the number of micro-batches that a channel between two stages can store.
        least_capacity: Option<usize>,
        /// An excerpt of the plan for the error message: for each blocked worker, the action at which it is blocked,
        /// and the actions next to that action.
        excerpt: Excerpt,
    },
    /// The error for a plan where a worker has more live micro-batches than the caller's limit. A micro-batch is live
    /// from its forward pass until its weight gradient is done.
    TooManyLive {
        /// The index, from 0, of the worker that exceeds the limit on live micro-batches.
        worker: usize,
        /// The forward pass with which a worker first exceeds the limit on live micro-batches.
        action: Action,
        /// The caller's limit on the number of live micro-batches of a worker. A micro-batch is live from its forward
        /// pass until its weight gradient is done.
        limit: usize,
        /// The lowest limit on live micro-batches that no worker of the plan exceeds: the largest peak number of live
        /// micro-batches of a worker.
        needed: usize,
        /// An excerpt of the plan for the error message: the forward pass that exceeds the limit on live micro-batches,
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
