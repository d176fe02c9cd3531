//! Predicts the memory that a pipeline would need under other settings: another plan, batch size, optimizer, or number
//! of stages. Most functions are methods of [`MemoryEstimate`].

use std::sync::Arc;

use stageline_schedule::{OneFOneB, Plan, Schedule, StageMemory};

use crate::device::location::{host, is_host, share_memory};
use crate::memory::estimate::{Copies, Leaf, MemoryEstimate, StageEstimate, Steps};
use crate::memory::independent_of_rows::IndependentOfRows;
use crate::update::optimizer_step::Rollback;

impl Leaf {
    /// Returns the device and parameter bytes of the single stage that all stages of a replica are joined into. Returns
    /// `None` if the stages do not share one memory.
    fn joined(leaves: &[Self]) -> Option<Self> {
        let device = leaves.first()?.device.clone();
        let parameters = leaves.iter().map(|leaf| leaf.parameters).sum();
        leaves.iter().all(|leaf| share_memory(&leaf.device, &device)).then_some(Self { device, parameters })
    }
}

impl IndependentOfRows {
    /// Estimates the part of a stage's memory that is independent of the micro-batch size, by linear extrapolation to 0
    /// rows (samples). `all` was measured with the usual number of rows, and `few` with the fraction `share` (between 0
    /// and 1) of them.
    pub(crate) fn between(few: &StageEstimate, all: &StageEstimate, share: f64) -> Self {
        let constant = |few: f64, all: f64| (all - (all - few) / (1.0 - share)).clamp(0.0, few.min(all).max(0.0));
        Self {
            activations: StageMemory {
                forward: constant(few.activations.forward, all.activations.forward),
                input_gradient: constant(few.activations.input_gradient, all.activations.input_gradient),
            },
            forward: constant(few.forward as f64, all.forward as f64) as u64,
            backward: constant(few.backward as f64, all.backward as f64) as u64,
            perhaps: 0,
        }
    }

    /// Returns the memory that is independent of the micro-batch size, for one half of a stage that is split in two.
    /// Activations are halved; the temporary memory of forward and backward passes stays the same.
    fn halved(self) -> Self {
        let StageMemory { forward, input_gradient } = self.activations;
        Self { activations: StageMemory { forward: forward / 2.0, input_gradient: input_gradient / 2.0 }, ..self }
    }
}

impl MemoryEstimate {
    /// Attaches `recomputed`, a second memory estimate of the same training run with full activation recomputation, so
    /// that [`check`](Self::check) can suggest recomputation.
    #[must_use]
    pub fn or_recomputed(self, recomputed: Self) -> Self {
        Self { recomputed: Some(Box::new(recomputed)), ..self }
    }

    /// Returns the memory estimate of this training run under another plan (order of actions on each worker). The
    /// caller must pass a plan with the same number of stages and workers; this is not checked.
    #[must_use]
    pub fn under(&self, plan: Plan) -> Self {
        let recomputed = self.recomputed.as_ref().map(|recomputed| Box::new(recomputed.under(plan.clone())));
        Self { plan: Arc::new(plan), recomputed, ..self.clone() }
    }

    /// Returns the memory estimate for overlapping steps, as [`Pipeline::steps`](crate::Pipeline::steps) runs them.
    /// Without rollback, or with several replicas, steps never overlap, and the result is this estimate.
    #[must_use]
    pub fn of_overlapping_steps(&self) -> Self {
        if self.rollback == Rollback::Off || !self.leaves.is_empty() {
            return self.clone();
        }
        let recomputed = self.recomputed.as_ref().map(|recomputed| Box::new(recomputed.of_overlapping_steps()));
        Self { steps: Steps::Overlapping, recomputed, ..self.clone() }
    }

    /// Returns the memory estimate while a checkpoint is written, which includes a second copy of parameters and
    /// optimizer states in host memory.
    #[must_use]
    pub fn with_checkpoints(&self) -> Self {
        let recomputed = self.recomputed.as_ref().map(|recomputed| Box::new(recomputed.with_checkpoints()));
        Self { copies: Copies::ForACheckpoint, recomputed, ..self.clone() }
    }

    /// Sets the host memory, in bytes, that the program needs outside its workers, such as for prefetched batches, and
    /// returns the new estimate. A later call replaces the value.
    #[must_use]
    pub fn with_host_memory(&self, bytes: u64) -> Self {
        let recomputed = self.recomputed.as_ref().map(|recomputed| Box::new(recomputed.with_host_memory(bytes)));
        Self { beside_workers: bytes, recomputed, ..self.clone() }
    }

    /// Returns the memory estimate for micro-batches with `share` times as many rows (samples) as in this estimate.
    ///
    /// All memory except parameter gradients is assumed to be proportional to the number of rows, unless a second
    /// measurement ([`beside`](Self::beside)) shows which part is constant.
    #[must_use]
    pub fn with_rows_times(&self, share: f64) -> Self {
        let float = |all: f64, fixed: f64| fixed + (all - fixed) * share;
        let bytes = |all: u64, fixed: u64| float(all as f64, fixed as f64).max(0.0) as u64;
        let scaled = |stage: &StageEstimate| {
            let IndependentOfRows { activations, forward, backward, perhaps } = stage.independent_of_rows;
            // With more rows, a layer may not add the largest gradient to its sum in place.
            let [beside_sums, _] = stage.backward_parts(backward);
            let not_included = stage.largest.saturating_sub(backward - beside_sums);
            let (constant, more) = if share > 1.0 { (backward, not_included) } else { (backward + perhaps, 0) };
            StageEstimate {
                activations: StageMemory {
                    forward: float(stage.activations.forward, activations.forward),
                    input_gradient: float(stage.activations.input_gradient, activations.input_gradient),
                },
                forward: bytes(stage.forward, forward),
                backward: bytes(stage.backward, constant.min(stage.backward)) + more,
                output: bytes(stage.output, 0),
                input_gradients: bytes(stage.input_gradients, 0),
                ..stage.clone()
            }
        };
        let recomputed = self.recomputed.as_ref().map(|recomputed| Box::new(recomputed.with_rows_times(share)));
        Self { stages: self.stages.iter().map(scaled).collect(), recomputed, ..self.clone() }
    }

    /// Separates memory that grows with the micro-batch's number of rows (samples) from constant memory. `fewer` is a
    /// second estimate of the same training run, measured with the fraction `share` of the rows (0 < `share` < 1). This
    /// makes [`with_rows_times`](Self::with_rows_times) and the suggestions of [`check`](Self::check) more accurate.
    #[must_use]
    pub fn beside(self, fewer: &Self, share: f64) -> Self {
        let known = |(all, fewer): (&StageEstimate, &StageEstimate)| StageEstimate {
            independent_of_rows: IndependentOfRows::between(fewer, all, share),
            ..all.clone()
        };
        Self { stages: self.stages.iter().zip(&fewer.stages).map(known).collect(), ..self }
    }

    /// Returns the element-wise maximum of two memory estimates: every measured value is the larger one of `self` and
    /// `other`. If the two were measured with micro-batches of two shapes, the result is an upper bound for a training
    /// run with both shapes.
    #[must_use]
    pub(crate) fn or_larger(&self, other: &Self) -> Self {
        let larger = |(one, other): (&StageEstimate, &StageEstimate)| StageEstimate {
            activations: StageMemory {
                forward: one.activations.forward.max(other.activations.forward),
                input_gradient: one.activations.input_gradient.max(other.activations.input_gradient),
            },
            optimizer: one.optimizer.max(other.optimizer),
            optimizer_on_host: one.optimizer_on_host.max(other.optimizer_on_host),
            forward: one.forward.max(other.forward),
            backward: one.backward.max(other.backward),
            gradients_beside: one.gradients_beside.max(other.gradients_beside),
            flush: one.flush.max(other.flush),
            output: one.output.max(other.output),
            input_gradients: one.input_gradients.max(other.input_gradients),
            ..one.clone()
        };
        let stages = self.stages.iter().zip(&other.stages).map(larger).collect();
        let other = self.other.iter().zip(&other.other).map(|(one, other)| *one.max(other)).collect();
        Self { stages, other, ..self.clone() }
    }

    /// Returns the memory estimate of the same training run with stateless optimizers, such as plain SGD.
    #[must_use]
    pub fn without_optimizer_states(&self) -> Self {
        let without = |stage: &StageEstimate| StageEstimate {
            optimizer: 0,
            optimizer_on_host: 0,
            flush: stage.flush.saturating_sub(stage.optimizer),
            ..stage.clone()
        };
        let recomputed = self.recomputed.as_ref().map(|recomputed| Box::new(recomputed.without_optimizer_states()));
        Self { stages: self.stages.iter().map(without).collect(), recomputed, ..self.clone() }
    }

    /// Returns the memory estimate of the same training run with optimizer states in host memory
    /// ([`OptimizerState::Host`](crate::OptimizerState)). Returns `None` if no stage has states that can move there.
    pub(crate) fn with_states_on_host(&self) -> Option<Self> {
        // If a device rounds sizes up, a few bytes may remain for a stage whose states have already moved.
        let can_move =
            |stage: &StageEstimate| !is_host(&stage.device) && stage.optimizer > 0 && stage.optimizer_on_host == 0;
        if host().is_none() || !self.stages.iter().any(can_move) {
            return None;
        }
        let moved = |stage: &StageEstimate| match can_move(stage) {
            // While the optimizer steps a parameter, its old and its new state are on the device.
            true => StageEstimate {
                optimizer: 0,
                optimizer_on_host: stage.optimizer,
                flush: stage.flush.saturating_sub(stage.optimizer) + 2 * stage.largest_state(),
                ..stage.clone()
            },
            false => stage.clone(),
        };
        let recomputed = self.recomputed.as_ref().and_then(|recomputed| recomputed.with_states_on_host()).map(Box::new);
        Some(Self { stages: self.stages.iter().map(moved).collect(), recomputed, ..self.clone() })
    }

    /// Returns the memory estimate of the same training run with every stage split into two equal parts. The plan
    /// (order of actions on each worker) is still that of the unsplit stages, so the caller must replace it.
    pub(crate) fn cut_in_two(&self) -> Self {
        let halves = |stage: &StageEstimate| {
            let half = StageEstimate {
                device: stage.device.clone(),
                parameters: stage.parameters / 2,
                parameters_in_checkpoint: stage.parameters_in_checkpoint / 2,
                gradients: stage.gradients / 2,
                gradients_beside: stage.gradients_beside / 2,
                optimizer: stage.optimizer / 2,
                optimizer_on_host: stage.optimizer_on_host / 2,
                activations: StageMemory {
                    forward: stage.activations.forward / 2.0,
                    input_gradient: stage.activations.input_gradient / 2.0,
                },
                independent_of_rows: stage.independent_of_rows.halved(),
                flush: stage.flush / 2,
                tied_gradients: Vec::new(),
                ..*stage
            };
            // The two halves are assumed to exchange tensors as large as the largest that the stage exchanges with its
            // neighbours.
            let within = stage.output.max(stage.input_gradients);
            let tied_gradients = stage.tied_gradients.iter().map(|&(owner, bytes)| (2 * owner, bytes)).collect();
            let second = StageEstimate { input_gradients: within, tied_gradients, ..half.clone() };
            [StageEstimate { output: within, ..half }, second]
        };
        let stages: Vec<_> = self.stages.iter().flat_map(halves).collect();
        let other = self.other.iter().flat_map(|other| [*other; 2]).collect();
        let half = |leaf: &Leaf| Leaf { device: leaf.device.clone(), parameters: leaf.parameters / 2 };
        let halves = |leaves: &Vec<Leaf>| leaves.iter().flat_map(|leaf| [half(leaf), half(leaf)]).collect();
        let leaves = self.leaves.iter().map(halves).collect();
        Self { stages, other, leaves, recomputed: None, ..self.clone() }
    }

    /// Returns the memory estimate of the same training run with all layers in one stage. Returns `None` if the stages
    /// are on several devices, or if there is only one stage.
    pub(crate) fn in_one_stage(&self) -> Option<Self> {
        let plan = Arc::new(OneFOneB.plan(1, self.plan.micro_batches()).ok()?);
        let mut stages = self.stages.iter().cloned();
        let mut joined = stages.next()?;
        let mut parts = joined.backward_parts(joined.backward);
        let mut fixed = joined.backward_parts(joined.independent_of_rows.backward);
        let [mut new, mut rest_of_flush] = joined.flush_parts();
        for stage in stages {
            if !share_memory(&stage.device, &joined.device) {
                return None;
            }
            joined.parameters += stage.parameters;
            joined.parameters_in_checkpoint += stage.parameters_in_checkpoint;
            joined.gradients += stage.gradients;
            joined.gradients_beside += stage.gradients_beside;
            joined.optimizer += stage.optimizer;
            joined.optimizer_on_host += stage.optimizer_on_host;
            joined.largest = joined.largest.max(stage.largest);
            joined.forward = joined.forward.max(stage.forward);
            // All gradients that layers do not add to the sums exist at the same time, but other temporary memory is
            // needed for one layer at a time. In the optimizer step, all new parameters and states also exist at the
            // same time.
            let beside =
                |[of_parameters, rest]: [u64; 2], [more, other]: [u64; 2]| [of_parameters + more, rest.max(other)];
            parts = beside(parts, stage.backward_parts(stage.backward));
            fixed = beside(fixed, stage.backward_parts(stage.independent_of_rows.backward));
            let [more_new, other_rest] = stage.flush_parts();
            (new, rest_of_flush) = (new + more_new, rest_of_flush.max(other_rest));
            let sum = |one: StageMemory, other: StageMemory| StageMemory {
                forward: one.forward + other.forward,
                input_gradient: one.input_gradient + other.input_gradient,
            };
            joined.activations = sum(joined.activations, stage.activations);
            let of_stage = stage.independent_of_rows;
            joined.independent_of_rows.activations = sum(joined.independent_of_rows.activations, of_stage.activations);
            joined.independent_of_rows.forward = joined.independent_of_rows.forward.max(of_stage.forward);
            joined.independent_of_rows.perhaps = joined.independent_of_rows.perhaps.max(of_stage.perhaps);
        }
        (joined.backward, joined.independent_of_rows.backward) = (parts.iter().sum(), fixed.iter().sum());
        joined.flush = new + rest_of_flush;
        (joined.output, joined.input_gradients, joined.tied_gradients) = (0, 0, Vec::new());
        let other = vec![self.other.iter().sum()];
        let leaves =
            self.leaves.iter().map(|leaves| Leaf::joined(leaves).map(|leaf| vec![leaf])).collect::<Option<_>>()?;
        let one = || Self { plan, stages: vec![joined], other, leaves, recomputed: None, ..self.clone() };
        (self.stages.len() > 1).then(one)
    }
}

#[cfg(test)]
#[cfg(all(feature = "flex", feature = "wgpu"))]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::memory::estimate::tests::of_activations;
    use crate::{DeviceName, Lever};

    #[test]
    fn states_move_from_a_device_to_the_host() {
        let gpu = DeviceName::parse_list("wgpu:0").unwrap().remove(0).open().unwrap();
        let mut estimate = of_activations(&[0.0, 0.0], 4);
        for stage in &mut estimate.stages {
            (stage.parameters, stage.gradients, stage.optimizer) = (1000, 1000, 2000);
            stage.parameters_in_checkpoint = 700; // the other bytes are copies in a lower precision
            (stage.flush, stage.largest) = (3000, 100);
        }
        assert_eq!(estimate.with_states_on_host(), None, "on CPUs both memories are the same");
        estimate.stages.iter_mut().for_each(|stage| stage.device = gpu.clone());
        let moved = estimate.with_states_on_host().unwrap();
        assert_eq!(estimate.devices(), [(gpu.clone(), 2 * (1000 + 2000 + 1000 + 3000))]);
        // In the flush (the optimizer step), the device has the new parameters and two states of the largest one. The
        // host has all states twice.
        let on_device = 2 * (1000 + 1000 + 1000 + 2 * 200);
        assert_eq!(moved.devices(), [(gpu.clone(), on_device), (Device::flex(), 2 * 2 * 2000)]);
        // A checkpoint has copies of the parameters and the states on the host, and none on the device.
        assert_eq!(moved.with_checkpoints().devices()[0], (gpu.clone(), on_device));
        assert_eq!(moved.with_checkpoints().devices()[1], (Device::flex(), 2 * (3 * 2000 + 700)));
        assert_eq!(estimate.with_checkpoints().devices()[1], (Device::flex(), 2 * (700 + 2000)));
        // Replica 0 alone writes a checkpoint.
        let leaf = || Leaf { device: gpu.clone(), parameters: 1000 };
        let replicas = MemoryEstimate { leaves: vec![vec![leaf(), leaf()]], ..estimate.clone() };
        assert_eq!(replicas.with_checkpoints().devices()[1], (Device::flex(), 2 * (700 + 2000)));

        let short = estimate.check(|_| Some(8_000), &OneFOneB, 1, |_| true).unwrap_err();
        let moves = |levers: &[Lever]| levers == [Lever::StatesOnHost];
        let remedy = short.remedies.iter().find(|remedy| moves(&remedy.levers)).unwrap();
        assert_eq!((&short.device, remedy.needs), (&gpu, on_device));
        assert_eq!(remedy.elsewhere.as_ref().map(|host| (host.needs, host.has)), Some((8_000, 8_000)));
        // The optimizer states also need room on the host, where a tenth of the memory must stay free.
        for (host, verdict) in [
            (Some(7_000), "6.8 kB, does not fit: the host would need about 8.0 kB, and has 7.0 kB"),
            (Some(8_500), "6.8 kB, may fit: the host would need about 8.0 kB, and has 8.5 kB"),
            (Some(9_000), "6.8 kB, fits"),
            (None, "6.8 kB, fits"),
        ] {
            let has = |device: &Device| if *device == Device::flex() { host } else { Some(8_000) };
            let short = estimate.check(has, &OneFOneB, 1, |lever| *lever == Lever::StatesOnHost).unwrap_err();
            let expected = format!("\n  optimizer states on the host: about {verdict}");
            let ends = |rest: &str| rest.is_empty() || rest.starts_with('\n');
            assert!(short.to_string().split_once(&expected).is_some_and(|(_, rest)| ends(rest)), "{short}");
            let remedy = "use a device that has more, or a smaller model";
            assert_eq!(short.to_string().contains(remedy), !verdict.ends_with(", fits"), "{short}");
        }
        let has = |device: &Device| (*device == Device::flex()).then_some(7_000);
        let short = moved.check(has, &OneFOneB, 1, |_| true).unwrap_err();
        assert_eq!((&short.device, short.needs, short.workers.len()), (&Device::flex(), 8_000, 2));
        assert!(short.to_string().contains("optimizer states on the host 4.0 kB"), "{short}");
        assert_eq!(short.remedies.len(), 1, "{short}");
        assert_eq!((&short.remedies[0].levers[..], short.remedies[0].needs), (&[Lever::LeanerOptimizer][..], 0));
        let mut rounded_up = moved;
        rounded_up.stages.iter_mut().for_each(|stage| stage.optimizer = 2);
        assert_eq!(rounded_up.with_states_on_host(), None, "the states are on the host already");
    }
}
