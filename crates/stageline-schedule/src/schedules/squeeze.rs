//! Moves every action of a plan to the earliest time that does not raise the peak of live micro-batches. The plan has
//! two stages per worker, placed in a V: worker w of P has stages w and 2P-1-w.

use std::collections::VecDeque;

use crate::plan::{Action, Compute, Plan, live_change};

/// Returns a plan with the actions of `plan`, each in the earliest possible time cell (a slot for one action of each
/// worker). No worker has more live micro-batches than the worker with the largest peak in `plan`. A micro-batch is
/// live between its forward pass and its weight gradient, and counts once for each stage of the worker.
///
/// In `plan`, worker w of P must have the stages w and 2P-1-w, and run each kind of action in ascending order of the
/// micro-batches.
///
/// The loop always ends, because the earliest remaining action of `plan` can run next. A worker exchanges data only
/// with the previous and the next worker. So a worker is visited only if it or one of these two neighbours ran an
/// action in the previous time cell. Otherwise, the worker still has no action that can run. The running time is linear
/// in the number of actions, times log(M) for M micro-batches.
pub(super) fn squeezed(plan: &Plan) -> Plan {
    let room = plan.peak_live().into_iter().max().unwrap_or(0);
    let mut left: Vec<_> = plan.rows().iter().map(|row| Remaining::new(row)).collect();
    let mut rows: Vec<_> = plan.rows().iter().map(|row| Vec::with_capacity(row.len())).collect();
    let mut done = vec![[0; Compute::ALL.len()]; plan.stages()];
    let mut visited: Vec<_> = (0..plan.workers()).collect();
    while !visited.is_empty() {
        let found: Vec<_> = visited
            .into_iter()
            .filter_map(|worker| {
                // The first stage of worker w is stage w.
                let cool_down = done[worker][Compute::Forward as usize] == plan.micro_batches();
                let next = left[worker].next(room, cool_down, |action| is_ready(action, &done))?;
                Some((worker, next))
            })
            .collect();
        for &(worker, at) in &found {
            let action = left[worker].remove(at);
            done[action.stage][action.compute as usize] += 1;
            rows[worker].push(action);
        }
        let around = |(worker, _): (usize, usize)| worker.saturating_sub(1)..(worker + 2).min(plan.workers());
        visited = found.into_iter().flat_map(around).collect();
        visited.sort_unstable();
        visited.dedup();
    }
    Plan::new(rows)
}

/// Whether an action can run: its input is available, and the channel for its output (which holds two messages) has
/// room. `done` has the number of finished actions for each stage and kind of computation.
fn is_ready(action: Action, done: &[[usize; Compute::ALL.len()]]) -> bool {
    let count = |(stage, compute): (usize, Compute)| done[stage][compute as usize];
    let [before, after] = neighbours(action, done.len());
    // A message is sent only if its channel has at most one other message, so capacity 2 is enough.
    before.is_none_or(|before| count(before) > action.micro_batch)
        && after.is_none_or(|after| count(after) + 2 > action.micro_batch)
}

/// The remaining actions of a worker with two stages, in the order of its list.
struct Remaining<'a> {
    row: &'a [Action],
    /// Indices in `row` of the worker's remaining actions, earliest first: one queue for each of its two stages and
    /// each kind of action.
    queues: [VecDeque<usize>; 2 * Compute::ALL.len()],
    live: LivePeaks,
}

impl<'a> Remaining<'a> {
    fn new(row: &'a [Action]) -> Self {
        let mut remaining = Self { row, queues: Default::default(), live: LivePeaks::new(row) };
        for at in 0..row.len() {
            remaining.queue(at).push_back(at);
        }
        remaining
    }

    fn queue(&mut self, at: usize) -> &mut VecDeque<usize> {
        let second_stage = usize::from(self.row[at].stage != self.row[0].stage);
        &mut self.queues[Compute::ALL.len() * second_stage + self.row[at].compute as usize]
    }

    /// Returns the index of a worker's next action in its list. Returns `None` if no action can run.
    ///
    /// The result is the first remaining action that is `ready` and does not exceed the limit `room` on live
    /// micro-batches. A forward pass may run before earlier actions of the list. Such a forward pass is allowed only if
    /// the worker never has more than `room` live micro-batches until these earlier actions are done. During the
    /// `cool_down` (after the last forward pass of the worker's first stage), a weight gradient runs only if no other
    /// action can.
    ///
    /// Only the heads of the queues can be the result. The later actions of a queue have later micro-batches. Later
    /// micro-batches are not ready earlier, and the peak of live micro-batches before them is at least as high.
    fn next(&self, room: usize, cool_down: bool, ready: impl Fn(Action) -> bool) -> Option<usize> {
        let fits = |at: usize| self.row[at].compute != Compute::Forward || self.live.peak_before(at) < room;
        let heads = self.queues.iter().filter_map(|queue| queue.front().copied());
        let possible = heads.filter(|&at| ready(self.row[at]) && fits(at));
        possible.min_by_key(|&at| (cool_down && self.row[at].compute == Compute::WeightGradient, at))
    }

    /// Removes an action from the remaining actions of a worker, and returns it for the worker to run. `at` is the
    /// action's index in the worker's list. The action must be the head of its queue, which is not checked. The actions
    /// that [`next`](Self::next) returns are heads.
    fn remove(&mut self, at: usize) -> Action {
        self.queue(at).pop_front();
        self.live.run(at, self.row[at].compute);
        self.row[at]
    }
}

/// Finds, in O(log n) for n actions, the peak number of live micro-batches that a worker would reach if it ran its
/// remaining actions in list order. The worker may already have run some later actions out of order.
///
/// The structure is a segment tree whose leaves are the actions of the list. It is stored as an array, in which node n
/// has the children 2n and 2n+1.
struct LivePeaks {
    /// The worker's current number of live micro-batches (forward pass done, weight gradient not yet done).
    live: isize,
    /// Two numbers for each segment-tree node, from the remaining actions below it. The first is the sum of their
    /// changes of the number of live micro-batches. The second is the largest prefix sum of these changes, at least 0.
    nodes: Vec<(isize, isize)>,
}

impl LivePeaks {
    fn new(row: &[Action]) -> Self {
        let leaves = row.len().next_power_of_two();
        let mut nodes = vec![(0, 0); 2 * leaves];
        for (node, action) in nodes[leaves..].iter_mut().zip(row) {
            let change = live_change(action.compute);
            *node = (change, change.max(0));
        }
        let mut peaks = Self { live: 0, nodes };
        (1..leaves).rev().for_each(|node| peaks.join(node));
        peaks
    }

    fn join(&mut self, node: usize) {
        let ((first, first_peak), (second, second_peak)) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        self.nodes[node] = (first + second, first_peak.max(first + second_peak));
    }

    /// Records that the worker runs the action with the index `at` in its list, of the kind `compute`.
    fn run(&mut self, at: usize, compute: Compute) {
        self.live += live_change(compute);
        let mut node = self.nodes.len() / 2 + at;
        self.nodes[node] = (0, 0);
        while node > 1 {
            node /= 2;
            self.join(node);
        }
    }

    /// Returns the peak number of live micro-batches that the worker reaches while it runs all remaining actions before
    /// the index `at` of its list.
    fn peak_before(&self, at: usize) -> usize {
        let (mut node, mut peak) = (self.nodes.len() / 2 + at, 0);
        while node > 1 {
            if !node.is_multiple_of(2) {
                let (before, before_peak) = self.nodes[node - 1];
                peak = before_peak.max(before + peak);
            }
            node /= 2;
        }
        (self.live + peak).unsigned_abs()
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::live_after;
    use crate::schedules::building_block::pattern;
    use crate::schedules::{v_half, v_min};

    /// Returns the same plan as [`squeezed`], by a simpler and slower method: in every time cell, each worker searches
    /// all of its remaining actions.
    fn squeezed_cell_by_cell(plan: &Plan) -> Plan {
        let room = plan.peak_live().into_iter().max().unwrap();
        let (mut left, mut rows) = (plan.rows().to_vec(), vec![Vec::new(); plan.workers()]);
        let mut done = vec![[0; Compute::ALL.len()]; plan.stages()];
        while left.iter().any(|left| !left.is_empty()) {
            let next = |worker: usize| {
                let cool_down = done[worker][Compute::Forward as usize] == plan.micro_batches();
                let mut live = rows[worker].iter().fold(0, |live, action: &Action| live_after(live, action.compute));
                let (mut most, mut filler) = (live, None);
                for (at, &action) in left[worker].iter().enumerate() {
                    let fits = action.compute != Compute::Forward || most < room;
                    if fits && is_ready(action, &done) {
                        if !cool_down || action.compute != Compute::WeightGradient {
                            return Some((worker, at));
                        }
                        filler = filler.or(Some((worker, at)));
                    }
                    live = live_after(live, action.compute);
                    most = most.max(live);
                }
                filler
            };
            let found: Vec<_> = (0..plan.workers()).filter_map(next).collect();
            for (worker, at) in found {
                let action = left[worker].remove(at);
                done[action.stage][action.compute as usize] += 1;
                rows[worker].push(action);
            }
        }
        Plan::new(rows)
    }

    #[test]
    fn every_action_is_in_the_earliest_cell() {
        for (workers, micro_batches) in (1..=9).flat_map(|workers| (1..=24).map(move |m| (workers, m))) {
            for block in [v_half::block, v_min::block] {
                let pattern = pattern(2 * workers, micro_batches, block).unwrap();
                let case = format!("P={workers} M={micro_batches}");
                assert_eq!(squeezed(&pattern), squeezed_cell_by_cell(&pattern), "{case}");
            }
        }
    }
}
