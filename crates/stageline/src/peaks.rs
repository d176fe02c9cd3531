//! The most that workers hold, from what their stages hold, and what they do in which order.
//!
//! What is live on a worker follows from the order of its actions alone. What is on its way between two does not, nor how far one
//! is ahead of the others: that is taken from a simulation in which every stage computes equally long.

use std::collections::HashMap;

use stageline_schedule::{Action, Compute, Costs, Span, Timeline, check, simulate};

use crate::device::share_memory;
use crate::estimate::{MemoryEstimate, StageEstimate, Steps, WorkerEstimate};

/// What they take in the simulation.
const FORWARD: f64 = 1.0;
const BACKWARD: f64 = 2.0;

/// How many micro-batches a stage are simulated: more of them are as far apart.
const SIMULATED: usize = 4;

/// Each worker's.
pub(crate) fn of_workers(estimate: &MemoryEstimate) -> Vec<WorkerEstimate> {
    let paces = Pace::of_workers(estimate);
    let rows = estimate.plan.rows().iter().zip(&estimate.other).zip(paces);
    rows.map(|((row, &other), pace)| Row { stages: &estimate.stages, row, pace, steps: estimate.steps }.held(other))
        .collect()
}

/// How a worker's time goes with that of others.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// The most that is on its way and in its memory while it computes, in bytes.
    transfers: u64,
    /// How much of its list it has begun when all agree on the step before.
    ahead: usize,
}

impl Pace {
    fn of_workers(estimate: &MemoryEstimate) -> Vec<Self> {
        let micro_batches = estimate.plan.micro_batches().min(SIMULATED * estimate.plan.stages());
        // A plan that cannot run has no pace.
        let Ok(plan) = check(estimate.plan.first(micro_batches), micro_batches) else {
            return vec![Self::default(); estimate.plan.workers()];
        };
        let costs = Costs::uniform(estimate.plan.stages(), FORWARD, BACKWARD);
        let timeline = match estimate.steps {
            Steps::Apart => simulate(&plan, &costs),
            Steps::Overlapping => simulate(&plan.twice(), &costs),
        };
        let is_of_first = |span: &&Span| span.action.micro_batch < micro_batches;
        let of_first = timeline.rows().iter().flatten().filter(is_of_first);
        let first_step = of_first.map(|span| span.end).fold(0.0, f64::max);
        let transfers = Transfers::of(&timeline);
        let pace = |(worker, row): (usize, &Vec<Span>)| {
            let held = transfers.held_by(worker, &estimate.stages);
            let during = |span: &Span| held.iter().filter(|held| held.during(span)).map(|held| held.bytes).sum();
            Self {
                transfers: row.iter().map(during).max().unwrap_or(0),
                // It hears of that when it is done with the action at hand.
                ahead: row.iter().filter(|span| !is_of_first(span) && span.start <= first_step).count(),
            }
        };
        timeline.rows().iter().enumerate().map(pace).collect()
    }
}

/// When something is held.
struct Held {
    from: f64,
    to: f64,
    bytes: u64,
}

impl Held {
    /// Until a micro-batch later than who receives it needs it.
    fn until(from: f64, needed: f64, bytes: u64) -> Self {
        Self { from, to: needed + FORWARD + BACKWARD, bytes }
    }

    fn during(&self, span: &Span) -> bool {
        self.from < span.end && span.start < self.to
    }
}

/// When micro-batches go forward through stages, and when gradients come back to them, and on which workers.
struct Transfers {
    forwards: HashMap<(usize, usize), (usize, Span)>,
    backwards: HashMap<(usize, usize), (usize, Span)>,
}

impl Transfers {
    fn of(timeline: &Timeline) -> Self {
        let of = |which: fn(Compute) -> bool| {
            let rows = timeline.rows().iter().enumerate();
            let spans = rows.flat_map(|(worker, row)| row.iter().map(move |span| (worker, *span)));
            let of_kind = spans.filter(|(_, span)| which(span.action.compute));
            of_kind.map(|(worker, span)| ((span.action.stage, span.action.micro_batch), (worker, span))).collect()
        };
        Self {
            forwards: of(|compute| compute == Compute::Forward),
            backwards: of(|compute| matches!(compute, Compute::Backward | Compute::InputGradient)),
        }
    }

    /// What is in a worker's memory because it is on its way: an activation is one of its sender's until that has its gradient.
    fn held_by(&self, worker: usize, stages: &[StageEstimate]) -> Vec<Held> {
        let mut held = Vec::new();
        for (&(stage, micro_batch), (_, span)) in &self.forwards {
            let Some((receiver, to)) = self.forwards.get(&(stage + 1, micro_batch)) else { continue };
            if *receiver == worker && !share_memory(&stages[stage].device, &stages[stage + 1].device) {
                held.push(Held::until(span.end, to.start, stages[stage].output));
            }
        }
        for (&(stage, micro_batch), (sender, span)) in &self.backwards {
            for &(owner, bytes) in &stages[stage].gradients_sent {
                let Some((receiver, to)) = self.backwards.get(&(owner, micro_batch)) else { continue };
                let shared = share_memory(&stages[stage].device, &stages[owner].device);
                if worker == if shared { *sender } else { *receiver } {
                    held.push(Held::until(span.end, to.end, bytes));
                }
            }
        }
        held
    }
}

/// What one worker does.
struct Row<'a> {
    stages: &'a [StageEstimate],
    row: &'a [Action],
    pace: Pace,
    steps: Steps,
}

impl Row<'_> {
    fn held(&self, other: u64) -> WorkerEstimate {
        let mut stages: Vec<_> = self.row.iter().map(|action| action.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        let sum = |of: fn(&StageEstimate) -> u64| stages.iter().map(|&stage| of(&self.stages[stage])).sum::<u64>();
        let (parameters, optimizer) = (sum(|stage| stage.parameters), sum(|stage| stage.optimizer));
        let gradients = sum(|stage| stage.gradients);
        let resident = other + parameters + optimizer;
        // The parameters as they were, and the sums.
        let kept = if self.pace.ahead > 0 { optimizer + 2 * gradients } else { 0 };
        let [activations, compute_peak] = self.compute(resident, kept);
        WorkerEstimate {
            other,
            parameters,
            optimizer,
            gradients,
            activations,
            transfers: self.pace.transfers,
            kept,
            compute_peak,
            flush_peak: self.flush(&stages, resident + gradients),
            stages,
        }
    }

    /// The most that activations are, and all together, before the flush; some is kept of the step before at first.
    fn compute(&self, resident: u64, kept: u64) -> [u64; 2] {
        let (mut activations, mut sums, mut has_sum) = (0.0, 0, vec![false; self.stages.len()]);
        let (mut most_activations, mut peak) = (0.0_f64, resident);
        for (index, Action { stage, compute, .. }) in self.row.iter().enumerate() {
            let estimate = &self.stages[*stage];
            let [start, end] = estimate.activations.changes(*compute);
            activations += start;
            most_activations = most_activations.max(activations);
            let work = if *compute == Compute::Forward { estimate.forward } else { estimate.backward };
            let kept = if index < self.pace.ahead { kept } else { 0 };
            peak = peak.max(resident + activations as u64 + sums + work + kept + self.pace.transfers);
            activations += end;
            if *compute != Compute::Forward && !std::mem::replace(&mut has_sum[*stage], true) {
                sums += estimate.gradients;
            }
        }
        [most_activations as u64, peak]
    }

    fn flush(&self, stages: &[usize], mut held: u64) -> u64 {
        let mut peak = held;
        for stage in stages.iter().map(|&stage| &self.stages[stage]) {
            // Where steps overlap, sums are kept.
            let sums = if self.steps == Steps::Overlapping { stage.gradients } else { 0 };
            peak = peak.max(held + stage.flush + sums);
            held += stage.optimizer + sums;
        }
        peak
    }
}
