//! What the same stages would hold, run otherwise.

use std::sync::Arc;

use stageline_schedule::{OneFOneB, Plan, Schedule, StageMemory};

use super::{Copies, Leaf, MemoryEstimate, StageEstimate, Steps};
use crate::location::share_memory;

impl Leaf {
    /// All of a replica in one stage, if they are on one device.
    fn joined(leaves: &[Self]) -> Option<Self> {
        let device = leaves.first()?.device.clone();
        let parameters = leaves.iter().map(|leaf| leaf.parameters).sum();
        leaves.iter().all(|leaf| share_memory(&leaf.device, &device)).then_some(Self { device, parameters })
    }
}

impl MemoryEstimate {
    /// The same, with what stages hold with full recomputation as a way out.
    #[must_use]
    pub fn or_recomputed(self, recomputed: Self) -> Self {
        Self { recomputed: Some(Box::new(recomputed)), ..self }
    }

    /// What the same stages hold under another plan, on as many workers.
    #[must_use]
    pub fn under(&self, plan: Plan) -> Self {
        Self { plan: Arc::new(plan), ..self.clone() }
    }

    /// What they hold in the steps of [`Pipeline::steps`](crate::Pipeline::steps).
    #[must_use]
    pub fn of_overlapping_steps(&self) -> Self {
        let recomputed = self.recomputed.as_ref().map(|recomputed| Box::new(recomputed.of_overlapping_steps()));
        Self { steps: Steps::Overlapping, recomputed, ..self.clone() }
    }

    /// What they hold while a checkpoint is written besides: copies of optimizer states, and parameters as they were.
    #[must_use]
    pub fn with_checkpoints(&self) -> Self {
        let recomputed = self.recomputed.as_ref().map(|recomputed| Box::new(recomputed.with_checkpoints()));
        Self { copies: Copies::ForACheckpoint, recomputed, ..self.clone() }
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
            backward: {
                let of_parameters = stage.gradients + stage.tied_gradients.iter().map(|(_, bytes)| bytes).sum::<u64>();
                part(stage.backward.saturating_sub(of_parameters)) + of_parameters.min(stage.backward)
            },
            output: part(stage.output),
            input_gradients: part(stage.input_gradients),
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
            output: line(one.output, two.output),
            input_gradients: line(one.input_gradients, two.input_gradients),
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

    /// Every stage in two equal parts. The plan is still that of the whole ones.
    pub(crate) fn cut_in_two(&self) -> Self {
        let halves = |stage: &StageEstimate| {
            let half = StageEstimate {
                device: stage.device.clone(),
                parameters: stage.parameters / 2,
                gradients: stage.gradients / 2,
                optimizer: stage.optimizer / 2,
                activations: StageMemory {
                    forward: stage.activations.forward / 2.0,
                    input_gradient: stage.activations.input_gradient / 2.0,
                },
                flush: stage.flush / 2,
                tied_gradients: Vec::new(),
                ..*stage
            };
            // What one hands to the other is like what they hand to others.
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

    /// All layers in one stage, if they are on one device.
    pub(crate) fn in_one_stage(&self) -> Option<Self> {
        let plan = Arc::new(OneFOneB.plan(1, self.plan.micro_batches()).ok()?);
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
        (joined.output, joined.input_gradients, joined.tied_gradients) = (0, 0, Vec::new());
        let other = vec![self.other.iter().sum()];
        let leaves =
            self.leaves.iter().map(|leaves| Leaf::joined(leaves).map(|leaf| vec![leaf])).collect::<Option<_>>()?;
        let one = || Self { plan, stages: vec![joined], other, leaves, recomputed: None, ..self.clone() };
        (self.stages.len() > 1).then(one)
    }
}
