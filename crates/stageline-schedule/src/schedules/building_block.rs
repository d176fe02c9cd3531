//! Plans that repeat a building block, and then do everything as early as their memory allows.

use std::collections::VecDeque;

use super::rows::in_chunks;
use crate::action::{Action, Compute};
use crate::memory::live_after;
use crate::plan::Plan;
use crate::schedule::ScheduleError;

/// Cells from one micro-batch's block to the next: a worker takes six actions a micro-batch.
const INTERVAL: usize = 6;

/// Chunks in a V: worker w of P has stages w and 2P-1-w.
///
/// `block` gives, by w and P, the cells of unit time in which a worker does micro-batch 0: the forwards of its two
/// stages, the input gradient of the second, and that of the first. Their remainders by [`INTERVAL`] must differ.
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

/// A worker's block, every micro-batch's one interval after the one before; weight gradients go into free cells.
fn repeat(block: [usize; 4], [first, second]: [usize; 2], micro_batches: usize) -> Vec<Action> {
    let (forward, input_gradient) = (Compute::Forward, Compute::InputGradient);
    let computes = [(first, forward), (second, forward), (second, input_gradient), (first, input_gradient)];
    let in_block = |cell: usize| {
        block.iter().zip(computes).find_map(|(start, (stage, compute))| {
            let since = cell.checked_sub(*start).filter(|since| since.is_multiple_of(INTERVAL))?;
            let micro_batch = since / INTERVAL;
            (micro_batch < micro_batches).then_some(Action { stage, compute, micro_batch })
        })
    };
    let (mut row, mut due) = (Vec::new(), VecDeque::new());
    for cell in 0..block[3] + INTERVAL * micro_batches {
        let action = in_block(cell).or_else(|| due.pop_front());
        row.extend(action);
        let split = action.filter(|action| action.compute == input_gradient);
        due.extend(split.map(|action| Action { compute: Compute::WeightGradient, ..action }));
    }
    row.extend(due);
    row
}

/// The plan with every action as early, cell by cell, as it can be while no worker has more chunks live than the worker
/// with the most of them has in this plan. Of the actions left, the first by its cell in this plan can always be next.
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
            // Its message finds at most one other in its channel, so channels need room for no more than 2.
            before.is_none_or(|before| count(before) > action.micro_batch)
                && after.is_none_or(|after| count(after) + 2 > action.micro_batch)
        };
        let next = |worker: usize| {
            // A worker's first stage has its number.
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

/// Where a worker's next action stands among those it has left: the first that is ready and has room, now and in all
/// that it overtakes. In the cool-down weight gradients come last, to fill what else would be idle.
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

/// What is done to a micro-batch right before an action, and what with the message that the action sends.
fn neighbours(action: Action, stages: usize) -> [Option<(usize, Compute)>; 2] {
    let Action { stage, compute, .. } = action;
    let (below, above) = (stage.checked_sub(1), Some(stage + 1).filter(|above| *above < stages));
    let there = |stage: Option<usize>| stage.map(|stage| (stage, compute));
    match compute {
        Compute::Forward => [there(below), there(above)],
        Compute::WeightGradient => [Some((stage, Compute::InputGradient)), None],
        _ => [there(above).or(Some((stage, Compute::Forward))), there(below)],
    }
}
