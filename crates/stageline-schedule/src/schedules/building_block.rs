//! Generates the plans of V-Half and V-Min: each worker repeats a building block (its actions on one micro-batch), and
//! then every action moves to the earliest time that the memory allows.

use std::collections::VecDeque;

use super::error::ScheduleError;
use super::rows::in_chunks;
use crate::plan::{Action, Compute, Plan, live_after};

/// The interval, in time cells, at which a worker begins its building block for the next micro-batch. A time cell is a
/// slot for one action of a worker. A building block is a worker's six actions on one micro-batch: a forward, an input
/// gradient and a weight gradient on each of its two stages.
const INTERVAL: usize = 6;

/// Generates a plan with two stages per worker: worker w of P has stages w and 2P-1-w. Each worker repeats its building
/// block (its actions on one micro-batch) for the next micro-batch every [`INTERVAL`] time cells. A time cell is a slot
/// for one action of each worker. Then every action moves to the earliest cell that the memory allows.
///
/// `block` gets w and P, and returns the cells of four actions of worker w on micro-batch 0. These are the forwards on
/// its first and second stage, and the input gradients on its second and first stage. The cells must differ modulo
/// [`INTERVAL`].
pub(crate) fn repeated(
    stages: usize,
    micro_batches: usize,
    block: impl Fn(usize, usize) -> [usize; 4],
) -> Result<Plan, ScheduleError> {
    let pattern = in_chunks(stages, micro_batches, 2, |worker, workers| {
        Ok(repeat(block(worker, workers), [worker, stages - 1 - worker], micro_batches))
    })?;
    Ok(squeezed(&pattern))
}

/// Returns the list of actions of a worker that repeats its building block (its actions on one micro-batch) every
/// [`INTERVAL`] time cells. A time cell is a slot for one action of the worker. `block` has the cells of the forwards
/// and input gradients of micro-batch 0. Weight gradients fill the remaining cells.
fn repeat(block: [usize; 4], [first, second]: [usize; 2], micro_batches: usize) -> Vec<Action> {
    let (forward, input_gradient) = (Compute::Forward, Compute::InputGradient);
    let computes = [(first, forward), (second, forward), (second, input_gradient), (first, input_gradient)];
    let action_in = |cell: usize| {
        block.iter().zip(computes).find_map(|(start, (stage, compute))| {
            let since = cell.checked_sub(*start).filter(|since| since.is_multiple_of(INTERVAL))?;
            let micro_batch = since / INTERVAL;
            (micro_batch < micro_batches).then_some(Action { stage, compute, micro_batch })
        })
    };
    let (mut row, mut due) = (Vec::new(), VecDeque::new());
    for cell in 0..block[3] + INTERVAL * micro_batches {
        let action = action_in(cell).or_else(|| due.pop_front());
        row.extend(action);
        let split = action.filter(|action| action.compute == input_gradient);
        due.extend(split.map(|action| Action { compute: Compute::WeightGradient, ..action }));
    }
    row.extend(due);
    row
}

/// Returns a plan with the actions of `plan`, each in the earliest possible time cell (a slot for one action of each
/// worker). No worker has more live micro-batches than the worker with the largest peak in `plan`. A micro-batch is
/// live between its forward and its weight gradient, and counts once for each stage of the worker.
///
/// The computation always ends, because the earliest remaining action of `plan` can run next.
fn squeezed(plan: &Plan) -> Plan {
    let room = plan.peak_live().into_iter().max().unwrap_or(0);
    let mut left: Vec<VecDeque<_>> = plan.rows().iter().map(|row| row.iter().copied().collect()).collect();
    let mut rows = vec![Vec::new(); plan.workers()];
    let mut live = vec![0; plan.workers()];
    let mut done = vec![[0; Compute::ALL.len()]; plan.stages()];
    while left.iter().any(|left| !left.is_empty()) {
        let count = |(stage, compute): (usize, Compute)| done[stage][compute as usize];
        let ready = |action: &Action| {
            let [before, after] = neighbours(*action, plan.stages());
            // A message is sent only if its channel has at most one other message, so capacity 2 is enough.
            before.is_none_or(|before| count(before) > action.micro_batch)
                && after.is_none_or(|after| count(after) + 2 > action.micro_batch)
        };
        let next = |worker: usize| {
            // The first stage of worker w is stage w.
            let cool_down = count((worker, Compute::Forward)) == plan.micro_batches();
            next(&left[worker], live[worker], room, cool_down, ready)
        };
        let found: Vec<_> = (0..plan.workers()).map(next).collect();
        for (worker, at) in found.into_iter().enumerate() {
            let Some(action) = at.and_then(|at| left[worker].remove(at)) else { continue };
            done[action.stage][action.compute as usize] += 1;
            live[worker] = live_after(live[worker], action.compute);
            rows[worker].push(action);
        }
    }
    Plan::new(rows)
}

/// Returns the index of a worker's next action in `left`, the list of its remaining actions. Returns `None` if no
/// action can run.
///
/// The result is the first action that is `ready` (it has its input, and its output has room in the channel) and that
/// fits into the memory. A forward may run before earlier actions of the list. It fits only if the worker then never
/// has more than `room` live micro-batches until these earlier actions are done. During the `cool_down` (after the last
/// forward of the worker's first stage), a weight gradient runs only if no other action can.
fn next(
    left: &VecDeque<Action>,
    live: usize,
    room: usize,
    cool_down: bool,
    ready: impl Fn(&Action) -> bool,
) -> Option<usize> {
    let (mut live, mut most, mut filler) = (live, live, None);
    for (at, action) in left.iter().enumerate() {
        let fits = action.compute != Compute::Forward || most < room;
        if fits && ready(action) {
            if !cool_down || action.compute != Compute::WeightGradient {
                return Some(at);
            }
            filler = filler.or(Some(at));
        }
        live = live_after(live, action.compute);
        most = most.max(live);
    }
    filler
}

/// Returns the two actions that exchange data with `action`, each as a stage and a kind of computation. The first makes
/// the input of `action`, and the second uses its result. An entry is `None` if there is no such action.
fn neighbours(action: Action, stages: usize) -> [Option<(usize, Compute)>; 2] {
    let Action { stage, compute, .. } = action;
    let (below, above) = (stage.checked_sub(1), Some(stage + 1).filter(|above| *above < stages));
    let same = |stage: Option<usize>| stage.map(|stage| (stage, compute));
    match compute {
        Compute::Forward => [same(below), same(above)],
        Compute::WeightGradient => [Some((stage, Compute::InputGradient)), None],
        _ => [same(above).or(Some((stage, Compute::Forward))), same(below)],
    }
}
