//! What steps will hold, from what two micro-batches held.
//!
//! A worker holds, beside what is always there, parameters and optimizer states; from its first backward on the sums of
//! gradients; the activations of every live micro-batch, of which the plan says how many there are; what the action at hand
//! needs for itself; and from the optimizer step on parameters and optimizer states once more, as they were before it.

use burn::tensor::Device;
use stageline_schedule::{Action, Compute, OneFOneB, Plan, Schedule, StageMemory};

use crate::device::share_memory;

/// What one stage holds in a step, in bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StageEstimate {
    /// Where it is.
    pub device: Device,
    /// Parameters, and their copy in a lower precision, if it computes in one.
    pub parameters: u64,
    /// The sums of gradients over the micro-batches.
    pub gradients: u64,
    /// What the optimizer remembers.
    pub optimizer: u64,
    /// What a live micro-batch holds.
    pub activations: StageMemory,
    /// What a forward needs besides, while it runs.
    pub forward: u64,
    /// What a backward, or the half of it that needs more, needs besides, a micro-batch's gradients included.
    pub backward: u64,
    /// What the flush needs besides, while it runs: what was before the optimizer step included.
    pub flush: u64,
}

/// What one worker holds in a step, in bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorkerEstimate {
    /// Its stages.
    pub stages: Vec<usize>,
    /// What is there between steps besides parameters and optimizer states.
    pub other: u64,
    /// Those of its stages.
    pub parameters: u64,
    /// Those of its stages.
    pub optimizer: u64,
    /// Those of its stages.
    pub gradients: u64,
    /// The most that its live micro-batches hold at once.
    pub activations: u64,
    /// The most before the flush.
    pub compute_peak: u64,
    /// The most in the flush.
    pub flush_peak: u64,
}

impl WorkerEstimate {
    /// The most at any time in a step.
    pub fn peak(&self) -> u64 {
        self.compute_peak.max(self.flush_peak)
    }
}

/// What steps will hold: made by [`Pipeline::estimate_memory`](crate::Pipeline::estimate_memory).
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryEstimate {
    pub(crate) plan: Plan,
    pub(crate) stages: Vec<StageEstimate>,
    /// What workers hold between steps besides parameters and optimizer states.
    pub(crate) other: Vec<u64>,
    /// With full recomputation, where that is known.
    pub(crate) recomputed: Option<Box<Self>>,
}

impl MemoryEstimate {
    /// Each stage's.
    pub fn stages(&self) -> &[StageEstimate] {
        &self.stages
    }

    /// Each worker's.
    pub fn workers(&self) -> Vec<WorkerEstimate> {
        let workers = self.plan.rows().iter().zip(&self.other);
        workers.map(|(row, &other)| self.worker(row, other)).collect()
    }

    /// The most that the workers on a device hold together, for each device; CPUs are one.
    pub fn devices(&self) -> Vec<(Device, u64)> {
        let mut devices: Vec<(Device, u64)> = Vec::new();
        for worker in self.workers() {
            let Some(device) = worker.stages.first().map(|&stage| &self.stages[stage].device) else { continue };
            match devices.iter_mut().find(|(other, _)| share_memory(other, device)) {
                Some((_, bytes)) => *bytes += worker.peak(),
                None => devices.push((device.clone(), worker.peak())),
            }
        }
        devices
    }

    /// The same, with what stages hold with full recomputation as a way out.
    #[must_use]
    pub fn or_recomputed(self, recomputed: Self) -> Self {
        Self { recomputed: Some(Box::new(recomputed)), ..self }
    }

    /// What the same stages hold under another plan, on as many workers.
    #[must_use]
    pub fn under(&self, plan: Plan) -> Self {
        Self { plan, ..self.clone() }
    }

    /// What they hold while a checkpoint is written besides: copies of optimizer states, and parameters as they were.
    #[must_use]
    pub fn with_checkpoints(&self) -> Self {
        let copied = |worker: &WorkerEstimate| worker.other + worker.parameters + worker.optimizer;
        let other = self.workers().iter().map(copied).collect();
        let recomputed = self.recomputed.as_ref().map(|recomputed| Box::new(recomputed.with_checkpoints()));
        Self { other, recomputed, ..self.clone() }
    }

    /// What they hold with micro-batches of so many times the rows.
    #[must_use]
    pub fn with_rows_times(&self, share: f64) -> Self {
        let part = |bytes: u64| (bytes as f64 * share) as u64;
        let smaller = |stage: &StageEstimate| StageEstimate {
            activations: StageMemory {
                forward: stage.activations.forward * share,
                input_gradient: stage.activations.input_gradient * share,
            },
            forward: part(stage.forward),
            backward: part(stage.backward.saturating_sub(stage.gradients)) + stage.gradients.min(stage.backward),
            ..stage.clone()
        };
        Self { stages: self.stages.iter().map(smaller).collect(), ..self.clone() }
    }

    /// What they hold with micro-batches of so many rows, from what they hold with one row, which this is, and with two: what one
    /// row adds, the others add too.
    #[must_use]
    pub fn with_rows(&self, two: &Self, rows: usize) -> Self {
        let more = rows.saturating_sub(1) as f64;
        let line = |one: u64, two: u64| (one as f64 + more * (two as f64 - one as f64)).max(0.0) as u64;
        let float = |one: f64, two: f64| (one + more * (two - one)).max(0.0);
        let of_stage = |(one, two): (&StageEstimate, &StageEstimate)| StageEstimate {
            activations: StageMemory {
                forward: float(one.activations.forward, two.activations.forward),
                input_gradient: float(one.activations.input_gradient, two.activations.input_gradient),
            },
            forward: line(one.forward, two.forward),
            backward: line(one.backward, two.backward),
            ..one.clone()
        };
        Self { stages: self.stages.iter().zip(&two.stages).map(of_stage).collect(), ..self.clone() }
    }

    /// What they hold with optimizers that remember nothing.
    #[must_use]
    pub fn without_optimizer_states(&self) -> Self {
        let without = |stage: &StageEstimate| StageEstimate {
            optimizer: 0,
            flush: stage.flush.saturating_sub(stage.optimizer),
            ..stage.clone()
        };
        Self { stages: self.stages.iter().map(without).collect(), ..self.clone() }
    }

    /// All layers in one stage, if they are on one device.
    pub(crate) fn in_one_stage(&self) -> Option<Self> {
        let plan = OneFOneB.plan(1, self.plan.micro_batches()).ok()?;
        let mut stages = self.stages.iter().cloned();
        let mut joined = stages.next()?;
        for stage in stages {
            if !share_memory(&stage.device, &joined.device) {
                return None;
            }
            joined.parameters += stage.parameters;
            joined.gradients += stage.gradients;
            joined.optimizer += stage.optimizer;
            joined.flush += stage.flush;
            joined.forward = joined.forward.max(stage.forward);
            joined.backward += stage.backward;
            joined.activations.forward += stage.activations.forward;
            joined.activations.input_gradient += stage.activations.input_gradient;
        }
        let other = vec![self.other.iter().sum()];
        (self.stages.len() > 1).then(|| Self { plan, stages: vec![joined], other, recomputed: None })
    }

    fn worker(&self, row: &[Action], other: u64) -> WorkerEstimate {
        let mut stages: Vec<_> = row.iter().map(|action| action.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        let sum = |of: fn(&StageEstimate) -> u64| stages.iter().map(|&stage| of(&self.stages[stage])).sum::<u64>();
        let (parameters, optimizer) = (sum(|stage| stage.parameters), sum(|stage| stage.optimizer));
        let gradients = sum(|stage| stage.gradients);
        let resident = (other + parameters + optimizer) as f64;
        let (mut activations, mut summed) = (0.0, 0.0);
        let (mut most_activations, mut compute_peak) = (0.0_f64, resident);
        let mut has_sum = vec![false; self.stages.len()];
        for action in row {
            let stage = &self.stages[action.stage];
            let [start, end] = stage.activations.changes(action.compute);
            activations += start;
            most_activations = most_activations.max(activations);
            let work = if action.compute == Compute::Forward { stage.forward } else { stage.backward };
            compute_peak = compute_peak.max(resident + activations + summed + work as f64);
            activations += end;
            if action.compute != Compute::Forward && !std::mem::replace(&mut has_sum[action.stage], true) {
                summed += stage.gradients as f64;
            }
        }
        let mut flush_held = resident + gradients as f64;
        let mut flush_peak = flush_held;
        for stage in stages.iter().map(|&stage| &self.stages[stage]) {
            flush_peak = flush_peak.max(flush_held + stage.flush as f64);
            flush_held += stage.optimizer as f64;
        }
        WorkerEstimate {
            stages,
            other,
            parameters,
            optimizer,
            gradients,
            activations: most_activations as u64,
            compute_peak: compute_peak as u64,
            flush_peak: flush_peak as u64,
        }
    }
}
