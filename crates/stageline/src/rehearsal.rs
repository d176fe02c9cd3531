//! Two micro-batches through all stages and back, and an optimizer step that is undone: what each of it takes.

use std::collections::HashSet;

use burn::tensor::Device;
use stageline_schedule::{Action, Compute, Instruction, Plan, StageMemory};

use crate::device::is_host;
use crate::estimate::{MemoryEstimate, StageEstimate};
use crate::events::Event;
use crate::failure::Activity;
use crate::precision::Precision;
use crate::tensors::Description;

/// What a stage is known to hold before anything is run.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    bytes: u64,
    /// Of those that it steps itself.
    gradients: u64,
}

impl Parameters {
    /// Of all stages, of what they have; copies of other stages' parameters are not stepped, and those in a lower precision are
    /// there besides.
    pub(crate) fn of(stages: &[Vec<Description>], precision: Precision) -> Vec<Self> {
        let mut owned = HashSet::new();
        let mut of_stage = |descriptions: &Vec<Description>| {
            let mut parameters = Self { bytes: 0, gradients: 0 };
            for Description { id, shape, dtype, trained, .. } in descriptions {
                let elements: usize = shape.iter().product();
                let copied = if dtype.is_float() { precision.bytes() } else { 0 };
                parameters.bytes += (elements * (dtype.size() + copied)) as u64;
                if owned.insert(*id) && *trained {
                    parameters.gradients += (elements * size_of::<f32>()) as u64;
                }
            }
            parameters
        };
        stages.iter().map(&mut of_stage).collect()
    }
}

/// What two micro-batches held.
pub(crate) struct Rehearsal<'a> {
    pub(crate) plan: Plan,
    pub(crate) stages: &'a [(Device, Parameters)],
    /// Whether optimizers have stepped before.
    pub(crate) stepped: bool,
    /// Of each worker.
    pub(crate) rows: Vec<Vec<Event>>,
}

impl Rehearsal<'_> {
    /// `None` where nothing counts what is held.
    pub(crate) fn estimate(self) -> Option<MemoryEstimate> {
        let stages = (0..self.plan.stages()).map(|stage| self.stage(stage)).collect::<Option<Vec<_>>>()?;
        let other = self.rows.iter().map(|row| self.other(row, &stages)).collect::<Option<Vec<_>>>()?;
        Some(MemoryEstimate { plan: self.plan, stages, other, recomputed: None })
    }

    /// What a worker holds when all is undone, besides what is known of its stages: the buffers of kernels, for one.
    fn other(&self, row: &[Event], stages: &[StageEstimate]) -> Option<u64> {
        let undone = || row.iter().filter(|event| event.activity == Activity::Follow);
        let last = undone().next_back()?;
        // A GPU's memory is that of all its stages.
        if !is_host(&stages[last.stage].device) {
            return Some(0);
        }
        let of_stage = |stage: &StageEstimate| stage.parameters + if self.stepped { stage.optimizer } else { 0 };
        let known: u64 = undone().map(|event| of_stage(&stages[event.stage])).sum();
        Some(last.held?.end.saturating_sub(known))
    }

    fn stage(&self, stage: usize) -> Option<StageEstimate> {
        let (device, parameters) = &self.stages[stage];
        let of = |compute| {
            self.of(stage, Activity::Instruction(Instruction::Compute(Action { stage, compute, micro_batch: 1 })))
        };
        let forward = of(Compute::Forward)?;
        let (step, undone) = (self.of(stage, Activity::OptimizerStep)?, self.of(stage, Activity::Follow)?);
        let backwards = [of(Compute::Backward), of(Compute::InputGradient), of(Compute::WeightGradient)];
        // What the input gradient leaves is what the weight gradient gives back.
        let input_gradient = backwards[1].as_ref().map_or(forward.kept, |over| forward.kept + over.kept);
        Some(StageEstimate {
            device: device.clone(),
            parameters: parameters.bytes,
            gradients: parameters.gradients,
            // A step makes parameters and states anew, and undoing it frees both.
            optimizer: u64::try_from(-undone.kept).unwrap_or(0).saturating_sub(parameters.gradients),
            activations: StageMemory {
                forward: forward.kept.max(0) as f64,
                input_gradient: input_gradient.max(0) as f64,
            },
            forward: forward.above_end,
            // What an input gradient leaves is counted there.
            backward: backwards
                .iter()
                .flatten()
                .map(|over| over.above_start - over.kept.clamp(0, over.above_start as i64) as u64)
                .max()?,
            flush: step.above_start,
        })
    }

    /// What an activity did to what its worker held.
    fn of(&self, stage: usize, activity: Activity) -> Option<Over> {
        let row = self.rows.iter().find(|row| row.iter().any(|event| event.stage == stage))?;
        let at = row.iter().position(|event| event.stage == stage && event.activity == activity)?;
        let (before, held) = (row[..at].iter().rev().find_map(|event| event.held)?, row[at].held?);
        Some(Over {
            kept: held.kept,
            above_start: held.peak.saturating_sub(before.end),
            above_end: held.peak.saturating_sub(held.end),
        })
    }
}

struct Over {
    kept: i64,
    /// The most during it, above what was held before it,
    above_start: u64,
    /// and above what is held after it.
    above_end: u64,
}
