//! The most that workers hold, from what their stages hold, and when their plan does what.
//!
//! What is live on a worker follows from the order of its actions alone. What is on its way between two does not: that is taken
//! from a simulation in which every stage computes equally long.

use std::collections::HashMap;

use stageline_schedule::{Action, Compute, Costs, Span, simulate};

use crate::device::share_memory;
use crate::estimate::{MemoryEstimate, StageEstimate, Steps, WorkerEstimate};

/// Each worker's.
pub(crate) fn of_workers(estimate: &MemoryEstimate) -> Vec<WorkerEstimate> {
    let plan = match estimate.steps {
        Steps::Apart => (*estimate.plan).clone(),
        Steps::Overlapping => estimate.plan.twice(),
    };
    let timeline = simulate(&plan, &Costs::uniform(plan.plan().stages(), 1.0, 2.0));
    let micro_batches = estimate.plan.plan().micro_batches();
    let of_first = |span: &&Span| span.action.micro_batch < micro_batches;
    let first_step = timeline.rows().iter().flatten().filter(of_first).map(|span| span.end).fold(0.0, f64::max);
    let transfers = Transfers::of(timeline.rows());
    let rows = timeline.rows().iter().zip(&estimate.other).enumerate();
    let worker = |(worker, (spans, &other)): (usize, (&Vec<Span>, &u64))| {
        let on_their_way = transfers.held_by(worker, &estimate.stages);
        Row { stages: &estimate.stages, steps: estimate.steps, spans, on_their_way, micro_batches, first_step }.held(other)
    };
    rows.map(worker).collect()
}

/// When something is held.
struct Held {
    from: f64,
    to: f64,
    bytes: u64,
}

impl Held {
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
    fn of(rows: &[Vec<Span>]) -> Self {
        let spans = || rows.iter().enumerate().flat_map(|(worker, row)| row.iter().map(move |span| (worker, *span)));
        let of = |which: fn(Compute) -> bool| {
            let of_kind = spans().filter(|(_, span)| which(span.action.compute));
            of_kind.map(|(worker, span)| ((span.action.stage, span.action.micro_batch), (worker, span))).collect()
        };
        Self {
            forwards: of(|compute| compute == Compute::Forward),
            backwards: of(|compute| matches!(compute, Compute::Backward | Compute::InputGradient)),
        }
    }

    /// What is in a worker's memory because it is on its way.
    fn held_by(&self, worker: usize, stages: &[StageEstimate]) -> Vec<Held> {
        let mut held = Vec::new();
        for (&(stage, micro_batch), (sender, span)) in &self.forwards {
            let Some((receiver, to)) = self.forwards.get(&(stage + 1, micro_batch)) else { continue };
            let shared = share_memory(&stages[stage].device, &stages[stage + 1].device);
            if !shared && *receiver == worker && receiver != sender {
                held.push(Held { from: span.end, to: to.start, bytes: stages[stage].output });
            }
        }
        for (&(stage, micro_batch), (sender, span)) in &self.backwards {
            for &(owner, bytes) in &stages[stage].gradients_sent {
                let Some((receiver, to)) = self.backwards.get(&(owner, micro_batch)) else { continue };
                let shared = share_memory(&stages[stage].device, &stages[owner].device);
                if worker == if shared { *sender } else { *receiver } {
                    held.push(Held { from: span.end, to: to.end, bytes });
                }
            }
        }
        held
    }
}

/// What one worker does.
struct Row<'a> {
    stages: &'a [StageEstimate],
    steps: Steps,
    spans: &'a [Span],
    on_their_way: Vec<Held>,
    /// Of a step.
    micro_batches: usize,
    /// When all workers have computed the first one.
    first_step: f64,
}

impl Row<'_> {
    fn held(&self, other: u64) -> WorkerEstimate {
        let mut stages: Vec<_> = self.spans.iter().map(|span| span.action.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        let sum = |of: fn(&StageEstimate) -> u64| stages.iter().map(|&stage| of(&self.stages[stage])).sum::<u64>();
        let (parameters, optimizer) = (sum(|stage| stage.parameters), sum(|stage| stage.optimizer));
        let gradients = sum(|stage| stage.gradients);
        let kept = match self.steps {
            Steps::Apart => 0,
            // The parameters as they were, and the sums.
            Steps::Overlapping => optimizer + 2 * gradients,
        };
        let mut held = WorkerEstimate {
            other,
            parameters,
            optimizer,
            gradients,
            activations: 0,
            transfers: 0,
            kept: 0,
            compute_peak: other + parameters + optimizer,
            flush_peak: self.flush_peak(&stages, other + parameters + optimizer + gradients),
            stages,
        };
        let second = self.spans.partition_point(|span| span.action.micro_batch < self.micro_batches);
        let (first, second) = self.spans.split_at(second);
        self.compute(first, &mut held, 0);
        self.compute(second, &mut held, kept);
        held
    }

    /// Goes through what it does before the flush of a step; `kept` is of the first one, until all have computed that.
    fn compute(&self, spans: &[Span], held: &mut WorkerEstimate, kept: u64) {
        let resident = (held.other + held.parameters + held.optimizer) as f64;
        let (mut activations, mut sums, mut has_sum) = (0.0, 0, vec![false; self.stages.len()]);
        for (index, span) in spans.iter().enumerate() {
            let Action { stage, compute, .. } = span.action;
            let estimate = &self.stages[stage];
            let [start, end] = estimate.activations.changes(compute);
            activations += start;
            let transfers = self.on_their_way.iter().filter(|held| held.during(span)).map(|held| held.bytes).sum::<u64>();
            // A worker hears that all agree when it is done with the action at hand.
            let kept = if index == 0 || span.start < self.first_step { kept } else { 0 };
            let work = if compute == Compute::Forward { estimate.forward } else { estimate.backward };
            let all = resident + activations + (sums + transfers + kept + work) as f64;
            held.compute_peak = held.compute_peak.max(all as u64);
            held.activations = held.activations.max(activations as u64);
            held.transfers = held.transfers.max(transfers);
            held.kept = held.kept.max(kept);
            activations += end;
            if compute != Compute::Forward && !std::mem::replace(&mut has_sum[stage], true) {
                sums += estimate.gradients;
            }
        }
    }

    fn flush_peak(&self, stages: &[usize], mut held: u64) -> u64 {
        let mut peak = held;
        for stage in stages.iter().map(|&stage| &self.stages[stage]) {
            let sums = if self.steps == Steps::Overlapping { stage.gradients } else { 0 };
            peak = peak.max(held + stage.flush + sums);
            held += stage.optimizer + sums;
        }
        peak
    }
}
