//! Functions shared by several plan generators. They make plans with one stage or several stages (chunks) per worker,
//! and the alternating forward and backward passes of 1F1B.

use super::error::ScheduleError;
use crate::plan::{Action, Compute, Plan};

/// Makes a plan with one stage per worker. `row` gets the index of a stage, and returns this stage's list of actions
/// (forward and backward passes).
pub(crate) fn one_worker_a_stage(
    stages: usize,
    micro_batches: usize,
    row: impl Fn(usize) -> Vec<Action>,
) -> Result<Plan, ScheduleError> {
    match (stages, micro_batches) {
        (0, _) => Err(ScheduleError::NoStages),
        (_, 0) => Err(ScheduleError::NoMicroBatches),
        _ => Ok(Plan::new((0..stages).map(row).collect())),
    }
}

/// Makes a plan of `stages` stages, with `chunks` stages per worker. `row` gets the index of a worker and the number of
/// workers, and returns this worker's list of actions. Returns an error if one of the three numbers is 0, if `stages`
/// is not a multiple of `chunks`, or if `row` fails.
pub(crate) fn in_chunks(
    stages: usize,
    micro_batches: usize,
    chunks: usize,
    row: impl Fn(usize, usize) -> Result<Vec<Action>, ScheduleError>,
) -> Result<Plan, ScheduleError> {
    match (stages, micro_batches, chunks) {
        // With 0 chunks per worker, the number of stages is 0 too, so this cause is checked first.
        (_, _, 0) => Err(ScheduleError::NoChunks),
        (0, _, _) => Err(ScheduleError::NoStages),
        (_, 0, _) => Err(ScheduleError::NoMicroBatches),
        _ if !stages.is_multiple_of(chunks) => Err(ScheduleError::Chunks { stages, chunks }),
        _ => {
            let workers = stages / chunks;
            Ok(Plan::new((0..workers).map(|worker| row(worker, workers)).collect::<Result<_, _>>()?))
        }
    }
}

/// Returns the number of workers for a plan with `stages` stages if each worker has `chunks` stages. Returns `None` if
/// `stages` is 0 or not a multiple of `chunks`, or if `chunks` is 0.
pub(crate) fn workers_of(stages: usize, chunks: usize) -> Option<usize> {
    stages.checked_div(chunks).filter(|workers| *workers > 0 && workers * chunks == stages)
}

/// Whether a stage's backward passes in 1F1B and similar plans are whole, or split into an input gradient and a weight
/// gradient.
#[derive(Clone, Copy)]
pub(crate) enum Backwards {
    /// Run each backward pass as one action (B), which computes the gradients of input and weights together.
    Whole,
    /// Split each backward pass into an input gradient (I) and a weight gradient (W), as in zero-bubble schedules. A
    /// micro-batch's weight gradient runs after the input gradients of `delay` further micro-batches.
    Split {
        /// Number of input gradients of further micro-batches that run between a micro-batch's input gradient and its
        /// weight gradient.
        delay: usize,
    },
}

/// Generates the actions of one stage as in 1F1B: `warm_up` forward passes (at most one for each micro-batch), then
/// alternately one forward pass and one backward pass, then the remaining backward passes. If backward passes are
/// split, the weight gradients that are still delayed come last.
pub(crate) fn alternate(stage: usize, micro_batches: usize, warm_up: usize, backwards: Backwards) -> Vec<Action> {
    let action = |compute, micro_batch| Action { stage, compute, micro_batch };
    let warm_up = warm_up.min(micro_batches);
    let mut row: Vec<_> = (0..warm_up).map(|micro_batch| Action::forward(stage, micro_batch)).collect();
    for micro_batch in 0..micro_batches {
        row.extend((warm_up + micro_batch < micro_batches).then(|| Action::forward(stage, warm_up + micro_batch)));
        match backwards {
            Backwards::Whole => row.push(Action::backward(stage, micro_batch)),
            Backwards::Split { delay } => {
                row.push(action(Compute::InputGradient, micro_batch));
                row.extend(micro_batch.checked_sub(delay).map(|due| action(Compute::WeightGradient, due)));
            }
        }
    }
    if let Backwards::Split { delay } = backwards {
        let remaining = micro_batches.saturating_sub(delay)..micro_batches;
        row.extend(remaining.map(|micro_batch| action(Compute::WeightGradient, micro_batch)));
    }
    row
}
