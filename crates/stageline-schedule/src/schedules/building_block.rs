//! Generates the plans of V-Half and V-Min. Each worker repeats a building block, which is its actions on one
//! micro-batch. Then every action moves to the earliest time that does not raise the peak number of live micro-batches.

use std::collections::VecDeque;

use super::error::ScheduleError;
use super::rows::in_chunks;
use super::squeeze::squeezed;
use crate::plan::{Action, Compute, Plan};

/// Number of time cells after which a worker repeats its building block for the next micro-batch. A time cell is a slot
/// for one action of a worker. A building block is a worker's six actions on one micro-batch: a forward pass, an input
/// gradient and a weight gradient on each of its two stages.
const INTERVAL: usize = 6;

/// Generates a plan with two stages per worker: worker w of P has stages w and 2P-1-w. Each worker repeats its building
/// block (its actions on one micro-batch) for the next micro-batch every [`INTERVAL`] time cells. A time cell is a slot
/// for one action of each worker. Then every action moves to the earliest cell that does not raise the peak number of
/// live micro-batches.
///
/// `block` gets w and P, and returns the cells of four actions of worker w on micro-batch 0. These are the forward
/// passes on its first and second stage, and the input gradients on its second and first stage. The cells must differ
/// modulo [`INTERVAL`]; otherwise actions of different micro-batches would share a cell. Returns an error if the number
/// of stages is odd or 0, or if there are no micro-batches.
pub(crate) fn repeated(
    stages: usize,
    micro_batches: usize,
    block: impl Fn(usize, usize) -> [usize; 4],
) -> Result<Plan, ScheduleError> {
    Ok(squeezed(&pattern(stages, micro_batches, block)?))
}

/// Returns the plan in which each worker repeats its building block (its actions on one micro-batch), before any action
/// moves to an earlier time.
pub(super) fn pattern(
    stages: usize,
    micro_batches: usize,
    block: impl Fn(usize, usize) -> [usize; 4],
) -> Result<Plan, ScheduleError> {
    in_chunks(stages, micro_batches, 2, |worker, workers| {
        Ok(repeat(block(worker, workers), [worker, stages - 1 - worker], micro_batches))
    })
}

/// Returns the list of actions of a worker that repeats its building block (its actions on one micro-batch) every
/// [`INTERVAL`] time cells. A time cell is a slot for one action of the worker, whose two stages are `first` and
/// `second`. `block` has the cells of the forward passes and input gradients of micro-batch 0. Weight gradients fill
/// the remaining cells.
fn repeat(block: [usize; 4], [first, second]: [usize; 2], micro_batches: usize) -> Vec<Action> {
    let (forward, input_gradient) = (Compute::Forward, Compute::InputGradient);
    let computes = [(first, forward), (second, forward), (second, input_gradient), (first, input_gradient)];
    let repetitions = |(start, (stage, compute)): (usize, (usize, Compute))| {
        (0..micro_batches)
            .map(move |micro_batch| (start + INTERVAL * micro_batch, Action { stage, compute, micro_batch }))
    };
    let mut cells: Vec<_> = block.into_iter().zip(computes).flat_map(repetitions).collect();
    cells.sort_unstable_by_key(|(cell, _)| *cell);
    let (mut row, mut due, mut next) = (Vec::new(), VecDeque::new(), 0);
    for (cell, action) in cells {
        row.extend(due.drain(..due.len().min(cell - next)));
        row.push(action);
        if action.compute == input_gradient {
            due.push_back(Action { compute: Compute::WeightGradient, ..action });
        }
        next = cell + 1;
    }
    row.extend(due);
    row
}
