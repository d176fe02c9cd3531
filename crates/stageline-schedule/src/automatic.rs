//! Plans made to measure, by rules that look at costs and memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::action::{Action, Compute};
use crate::costs::Costs;
use crate::lower::{Carried, Transfer};
use crate::memory::Memory;
use crate::placement::Placement;
use crate::plan::Plan;
use crate::ready::Time;

/// What a worker does where more than one thing is right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rules {
    /// Whether a forward goes before an input gradient, where both have arrived.
    pub(crate) forward_first: bool,
    /// A forward is put off for an input gradient that arrives within this share of it.
    pub(crate) forward_patience: f64,
    /// A weight gradient is put off for something else that arrives within this share of it.
    pub(crate) weight_patience: f64,
}

impl Rules {
    /// All that are worth a try.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let shares = [0.0, 0.5, 1.0];
        let patience = shares.into_iter().flat_map(move |forward| shares.map(|weight| (forward, weight)));
        patience.flat_map(|(forward_patience, weight_patience)| {
            [false, true].map(|forward_first| Self { forward_first, forward_patience, weight_patience })
        })
    }
}

/// The plan that some rules make, in the manner of Zero Bubble's automatic schedule (Qi et al., 2023,
/// [arXiv:2401.10241](https://arxiv.org/abs/2401.10241), section 3): a worker that is free takes an input gradient or a
/// forward that has arrived, and fills its waits with weight gradients. `None` if the memory is too small for it.
///
/// A forward begins only where the memory would take the same micro-batch through all later stages of the worker, too, and
/// through its backwards. So the oldest live micro-batch can always finish, and nothing waits for memory forever. Transfers
/// are taken to be asynchronous.
pub(crate) fn automatic(
    placement: &Placement,
    micro_batches: usize,
    costs: &Costs,
    memory: &Memory,
    rules: Rules,
) -> Option<Plan> {
    let mut run = Run::new(placement, micro_batches, costs, memory, rules);
    while let Some(Reverse((Time(now), worker))) = run.events.pop() {
        if run.workers[worker].free_at > now {
            continue;
        }
        match run.next(worker, now) {
            Next::Begin(action) => run.begin(worker, action, now),
            Next::Wait(until) => run.events.push(Reverse((Time(until), worker))),
            Next::Nothing => {}
        }
    }
    let rows: Vec<_> = run.workers.into_iter().map(|worker| worker.row).collect();
    let done = rows.iter().map(Vec::len).sum::<usize>() == 3 * placement.stages() * micro_batches;
    done.then(|| Plan::new(rows))
}

/// What a stage has got, or will get at a known time, for its next micro-batches.
#[derive(Clone, Default)]
struct Stage {
    forwarded: usize,
    activations: VecDeque<f64>,
    returned: usize,
    gradients: VecDeque<f64>,
}

#[derive(Clone, Default)]
struct Worker {
    stages: Vec<usize>,
    /// The weight gradients that can be done.
    weights: VecDeque<Action>,
    free_at: f64,
    held: f64,
    row: Vec<Action>,
}

/// Something that a worker can do from this time on.
#[derive(Clone, Copy)]
struct Coming {
    at: f64,
    action: Action,
}

enum Next {
    Begin(Action),
    /// Something else comes at this time.
    Wait(f64),
    /// Nothing is known to come.
    Nothing,
}

struct Run<'a> {
    placement: &'a Placement,
    costs: &'a Costs,
    memory: &'a Memory,
    rules: Rules,
    stages: Vec<Stage>,
    workers: Vec<Worker>,
    /// When to look at a worker again.
    events: BinaryHeap<Reverse<(Time, usize)>>,
}

impl<'a> Run<'a> {
    fn new(placement: &'a Placement, micro_batches: usize, costs: &'a Costs, memory: &'a Memory, rules: Rules) -> Self {
        let mut stages = vec![Stage::default(); placement.stages()];
        stages[0].activations = vec![0.0; micro_batches].into();
        let worker = |stages: &Vec<usize>| Worker { stages: stages.clone(), ..Worker::default() };
        let workers = placement.stages_of().iter().map(worker).collect();
        let events = BinaryHeap::from([Reverse((Time(0.0), placement.worker(0)))]);
        Self { placement, costs, memory, rules, stages, workers, events }
    }

    /// What a free worker does.
    fn next(&self, worker: usize, now: f64) -> Next {
        let soon = |coming: Option<Coming>, action: Action, patience: f64| {
            coming.is_some_and(|coming| coming.at > now && coming.at < now + patience * self.costs.of(action))
        };
        let arrived = |coming: Option<Coming>| coming.filter(|coming| coming.at <= now).map(|coming| coming.action);
        let (backward, forward) = (self.next_backward(worker), self.next_forward(worker, now));

        let returned = arrived(backward);
        let forwardable = arrived(forward).filter(|&action| !soon(backward, action, self.rules.forward_patience));
        let first = if self.rules.forward_first { forwardable.or(returned) } else { returned.or(forwardable) };
        let weight = self.workers[worker].weights.front().copied().filter(|&action| {
            let patience = self.rules.weight_patience;
            !soon(backward, action, patience) && !soon(forward, action, patience)
        });
        if let Some(action) = first.or(weight) {
            return Next::Begin(action);
        }
        let later = [backward, forward].into_iter().flatten().map(|coming| coming.at).filter(|&at| at > now);
        later.min_by(f64::total_cmp).map_or(Next::Nothing, Next::Wait)
    }

    /// The input gradient that comes first.
    fn next_backward(&self, worker: usize) -> Option<Coming> {
        let of_stage = |&stage: &usize| {
            let Stage { returned, gradients, .. } = &self.stages[stage];
            let action = Action { stage, compute: Compute::InputGradient, micro_batch: *returned };
            Some(Coming { at: *gradients.front()?, action })
        };
        self.workers[worker].stages.iter().rev().filter_map(of_stage).min_by(|a, b| a.at.total_cmp(&b.at))
    }

    /// The forward that comes first and that the memory takes; of those that have come, the one of the latest stage.
    fn next_forward(&self, worker: usize, now: f64) -> Option<Coming> {
        let Worker { stages, held, .. } = &self.workers[worker];
        let mut to_come = *held;
        let mut first: Option<Coming> = None;
        for &stage in stages.iter().rev() {
            to_come += self.memory.stages[stage].most();
            let Some(&arrival) = self.stages[stage].activations.front() else { continue };
            let coming = Coming { at: arrival.max(now), action: Action::forward(stage, self.stages[stage].forwarded) };
            if self.memory.takes(to_come) && first.is_none_or(|first| coming.at < first.at) {
                first = Some(coming);
            }
        }
        first
    }

    fn begin(&mut self, worker: usize, action: Action, now: f64) {
        let Action { stage, compute, micro_batch } = action;
        let end = now + self.costs.of(action);
        let state = &mut self.workers[worker];
        state.row.push(action);
        state.free_at = end;
        state.held += self.memory.stages[stage].reserved(compute);
        self.events.push(Reverse((Time(end), worker)));
        match compute {
            Compute::Forward => {
                self.stages[stage].activations.pop_front();
                self.stages[stage].forwarded += 1;
                if stage + 1 == self.stages.len() {
                    self.stages[stage].gradients.push_back(end);
                } else {
                    let at = self.arrival(Transfer { from: stage, carried: Carried::Activation, micro_batch }, end);
                    self.stages[stage + 1].activations.push_back(at);
                }
            }
            Compute::Backward | Compute::InputGradient => {
                self.stages[stage].gradients.pop_front();
                self.stages[stage].returned += 1;
                state.weights.push_back(Action { compute: Compute::WeightGradient, ..action });
                if stage > 0 {
                    let at = self.arrival(Transfer { from: stage, carried: Carried::Gradient, micro_batch }, end);
                    self.stages[stage - 1].gradients.push_back(at);
                }
            }
            Compute::WeightGradient => {
                state.weights.pop_front();
            }
        }
    }

    /// When a message arrives, its receiver is looked at.
    fn arrival(&mut self, transfer: Transfer, sent: f64) -> f64 {
        let (from, to) = (self.placement.worker(transfer.from), self.placement.worker(transfer.to()));
        let at = if from == to { sent } else { sent + self.costs.latency(transfer) };
        self.events.push(Reverse((Time(at), to)));
        at
    }
}
