//! Two micro-batches through all stages and back, and an optimizer step that is undone: what each of it takes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;
use stageline_schedule::{Action, Carried, Compute, Instruction, Plan, StageMemory};

use crate::device::location::{is_host, share_memory};
use crate::failure::activity::Activity;
use crate::memory::estimate::{Copies, Leaf, MemoryEstimate, StageEstimate, Steps, WhateverRows};
use crate::nn::params::visit::Description;
use crate::recording::events::Event;
use crate::recording::memory::sent;
use crate::threads::cores::KernelThreads;
use crate::update::flush::Rollback;
use crate::update::precision::Precision;

/// What a stage is known to hold before anything is run.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    pub(crate) bytes: u64,
    /// Of those that it steps itself.
    gradients: u64,
    /// The largest parameter among those.
    largest: u64,
    /// Of copies of other stages' parameters, for a micro-batch, and whose they are.
    of_copies: Vec<(usize, u64)>,
}

impl Parameters {
    /// Of all stages of every replica, of what they have.
    pub(crate) fn by_replica(
        stages: &[Vec<Description>],
        devices: &[Vec<Device>],
        precision: Precision,
    ) -> Vec<Vec<Self>> {
        let root = |replica| (replica > 0).then_some(&*devices[0]);
        let replicas = devices.iter().enumerate();
        replicas.map(|(replica, devices)| Self::of(stages, (devices, root(replica)), precision)).collect()
    }

    /// Of all stages on these devices. Copies of other stages' parameters, in the replica and on the devices of the one that steps
    /// them, if it is another, are those stages' own memory where it is shared; what is in a lower precision is there besides.
    fn of(
        stages: &[Vec<Description>],
        (devices, root): (&[Device], Option<&[Device]>),
        precision: Precision,
    ) -> Vec<Self> {
        let mut owners = HashMap::new();
        let mut of_stage = |(stage, descriptions): (usize, &Vec<Description>)| {
            let mut parameters = Self { bytes: 0, gradients: 0, largest: 0, of_copies: Vec::new() };
            for Description { id, shape, dtype, trained, .. } in descriptions {
                let elements: usize = shape.iter().product();
                let copied = if dtype.is_float() { precision.bytes() } else { 0 };
                let owner = *owners.entry(*id).or_insert(stage);
                let of_owner = if owner == stage { root.map(|root| &root[stage]) } else { Some(&devices[owner]) };
                let is_there = *trained && of_owner.is_some_and(|owner| share_memory(owner, &devices[stage]));
                parameters.bytes += (elements * (if is_there { 0 } else { dtype.size() } + copied)) as u64;
                if owner != stage && *trained {
                    let each = if copied > 0 { copied } else { dtype.size() };
                    parameters.of_copies.push((owner, (elements * each) as u64));
                } else if *trained {
                    let bytes = (elements * size_of::<f32>()) as u64;
                    parameters.gradients += bytes;
                    parameters.largest = parameters.largest.max(bytes);
                }
            }
            parameters
        };
        stages.iter().enumerate().map(&mut of_stage).collect()
    }
}

/// What two micro-batches held.
pub(crate) struct Rehearsal<'a> {
    pub(crate) plan: Plan,
    pub(crate) stages: &'a [(Device, Parameters)],
    /// Those of the other replicas.
    pub(crate) elsewhere: &'a [Vec<(Device, Parameters)>],
    /// In how many groups gradients are summed.
    pub(crate) groups: usize,
    pub(crate) threads: KernelThreads,
    pub(crate) rollback: Rollback,
    /// Whether optimizers have stepped before.
    pub(crate) stepped: bool,
    /// Of each worker of the first replica.
    pub(crate) rows: Vec<Vec<Event>>,
}

impl Rehearsal<'_> {
    /// How long its stages computed in the backwards of the second one.
    pub(crate) fn backwards(&self) -> Duration {
        let is_backward = |event: &&Event| match event.activity {
            Activity::Instruction(Instruction::Compute(action)) => {
                action.compute != Compute::Forward && action.micro_batch == 1
            }
            _ => false,
        };
        self.rows.iter().flatten().filter(is_backward).map(Event::worked).sum()
    }

    /// `None` where nothing counts what is held.
    pub(crate) fn estimate(self) -> Option<MemoryEstimate> {
        let stages = (0..self.stages.len()).map(|stage| self.stage(stage)).collect::<Option<Vec<_>>>()?;
        let other = self.rows.iter().map(|row| self.other(row, &stages)).collect::<Option<Vec<_>>>()?;
        let (steps, copies, groups) = (Steps::Apart, Copies::None, self.groups);
        let (threads, rollback) = (self.threads, self.rollback);
        let leaf =
            |(device, parameters): &(Device, Parameters)| Leaf { device: device.clone(), parameters: parameters.bytes };
        let leaves = self.elsewhere.iter().map(|stages| stages.iter().map(leaf).collect()).collect();
        let plan = Arc::new(self.plan);
        Some(MemoryEstimate { plan, stages, other, threads, rollback, leaves, groups, recomputed: None, steps, copies })
    }

    /// What a worker holds when all is undone, besides what is known of its stages and of its threads.
    fn other(&self, row: &[Event], stages: &[StageEstimate]) -> Option<u64> {
        let undone = || row.iter().filter(|event| event.activity == Activity::Follow);
        let last = undone().next_back()?;
        // A GPU's memory is that of all its stages.
        if !is_host(&stages[last.stage].device) {
            return Some(0);
        }
        let of_stage = |stage: &StageEstimate| stage.parameters + if self.stepped { stage.optimizer } else { 0 };
        let known: u64 = undone().map(|event| of_stage(&stages[event.stage])).sum();
        let workers = self.rows.len() * (1 + self.elsewhere.len());
        Some(last.held?.end.saturating_sub(known + self.threads.buffers_of_one(workers)))
    }

    fn stage(&self, stage: usize) -> Option<StageEstimate> {
        let (device, parameters) = &self.stages[stage];
        let of = |compute| {
            self.of(stage, Activity::Instruction(Instruction::Compute(Action { stage, compute, micro_batch: 1 })))
        };
        let forward = of(Compute::Forward)?;
        let (step, undone) = (self.of(stage, Activity::OptimizerStep)?, self.of(stage, Activity::Follow)?);
        let backwards = [of(Compute::Backward), of(Compute::InputGradient), of(Compute::WeightGradient)];
        let input_gradients = self.sent(stage, Carried::Gradient);
        let tied_gradients = parameters.of_copies.clone();
        let on_their_way = (input_gradients + tied_gradients.iter().map(|(_, bytes)| bytes).sum::<u64>()) as i64;
        // What the input gradient leaves, and has not sent, is what the weight gradient gives back.
        let left = |over: &Over| over.kept - on_their_way;
        let input_gradient = backwards[1].as_ref().map_or(forward.kept, |over| forward.kept + left(over));
        let input = stage.checked_sub(1).filter(|&previous| !share_memory(&self.stages[previous].0, device));
        let input = input.map_or(0, |previous| self.sent(previous, Carried::Activation));
        Some(StageEstimate {
            device: device.clone(),
            parameters: parameters.bytes,
            gradients: parameters.gradients,
            // A step makes parameters and states anew, and undoing it frees both.
            optimizer: u64::try_from(-undone.kept).unwrap_or(0).saturating_sub(parameters.gradients),
            activations: StageMemory {
                forward: (forward.kept.max(0) as u64 + input) as f64,
                input_gradient: input_gradient.max(0) as f64,
            },
            forward: forward.above_end,
            // What an input gradient leaves is counted there.
            backward: backwards
                .iter()
                .flatten()
                .map(|over| over.above_start - left(over).clamp(0, over.above_start as i64) as u64)
                .max()?,
            flush: step.above_start,
            output: self.sent(stage, Carried::Activation),
            input_gradients,
            whatever_rows: WhateverRows::gradients(
                parameters.gradients + tied_gradients.iter().map(|(_, bytes)| bytes).sum::<u64>(),
            ),
            tied_gradients,
            largest: parameters.largest,
        })
    }

    /// What a stage hands on in one transfer, in bytes.
    fn sent(&self, stage: usize, carried: Carried) -> u64 {
        sent(stage, carried, &self.rows).max().unwrap_or(0)
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
