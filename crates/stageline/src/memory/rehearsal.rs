//! The rehearsal ([`Rehearsal`]): a step of two micro-batches that is run to measure the memory of each action, such as
//! a forward pass, and then rolled back.
//!
//! Memory is measured on the second micro-batch, because during the first one kernels also allocate buffers that they
//! keep for later micro-batches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::{DType, Device, Shape};
use stageline_schedule::{Action, Activity, Carried, Compute, Event, Instruction, Plan, StageMemory};

use crate::device::location::{is_host, share_memory};
use crate::memory::estimate::{Copies, Leaf, MemoryEstimate, StageEstimate, Steps};
use crate::memory::independent_of_rows::IndependentOfRows;
use crate::recording::memory::sent;
use crate::state::frozen::{FrozenFrom, is_left_out};
use crate::state::parameter_count::bytes_of_kind;
use crate::threads::cores::KernelThreads;
use crate::update::optimizer_step::Rollback;
use crate::update::precision::Precision;
use stageline_nn::params::Description;

/// The sizes of a stage's parameters and of their gradients in bytes, which are known before a step runs.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    /// Bytes of the stage's parameters and of their low-precision copies. If a trained parameter shares its memory with
    /// its owner (another stage, or the same stage of replica 0), only its low-precision copy counts.
    pub(crate) bytes: u64,
    /// The bytes of the stage's tensors that a checkpoint holds. Copies in a lower precision do not count, nor do large
    /// frozen parameters that resumed runs take from the model.
    in_checkpoint: u64,
    /// The bytes of the f32 gradients of the trained parameters that this stage owns (steps with its own optimizer).
    gradients: u64,
    /// The bytes of the f32 gradient of the largest trained parameter that this stage owns (steps with its own
    /// optimizer).
    largest: u64,
    /// The tied parameters that this stage uses, and that another stage owns (steps with its optimizer). Each entry has
    /// the index of the owning stage and the bytes of the parameter's gradient for one micro-batch.
    of_copies: Vec<(usize, u64)>,
}

impl Parameters {
    /// Returns the parameter sizes of all stages of every replica. `stages` describes each stage's tensors, and
    /// `devices[r][s]` is the device of stage `s` in replica `r`.
    pub(crate) fn by_replica(
        stages: &[Vec<Description>],
        devices: &[Vec<Device>],
        precision: Precision,
        frozen_from: FrozenFrom,
    ) -> Vec<Vec<Self>> {
        let root = |replica| (replica > 0).then_some(&*devices[0]);
        let replicas = devices.iter().enumerate();
        replicas.map(|(replica, devices)| Self::of(stages, devices, root(replica), precision, frozen_from)).collect()
    }

    /// Returns the parameter sizes of the stages of one replica. `root` has the devices of replica 0; it is `None` for
    /// replica 0 itself. If a trained parameter's owner (the stage that steps it) is in the same memory, the parameter
    /// takes no memory except for its copy in a lower precision.
    fn of(
        stages: &[Vec<Description>],
        devices: &[Device],
        root: Option<&[Device]>,
        precision: Precision,
        frozen_from: FrozenFrom,
    ) -> Vec<Self> {
        let mut owners = HashMap::new();
        let mut sizes = |(stage, descriptions): (usize, &Vec<Description>)| {
            let mut parameters = Self { bytes: 0, in_checkpoint: 0, gradients: 0, largest: 0, of_copies: Vec::new() };
            for description in descriptions {
                let Description { id, shape, dtype, trained, .. } = description;
                let elements: usize = shape.iter().product();
                let is_quantized = matches!(dtype, DType::QFloat(_));
                // A frozen parameter that is already in the lower precision needs no copy.
                let is_shared = !*trained && precision.rounded().is_some_and(|rounded| DType::from(rounded) == *dtype);
                let is_copied = dtype.is_float() && !is_quantized && !is_shared;
                let copied = if is_copied { precision.bytes() } else { 0 };
                let own = bytes_of_kind(*dtype, &Shape::from(shape.clone()));
                let owner = *owners.entry(*id).or_insert(stage);
                let of_owner = if owner == stage { root.map(|root| &root[stage]) } else { Some(&devices[owner]) };
                let is_there = *trained && of_owner.is_some_and(|owner| share_memory(owner, &devices[stage]));
                let in_full = if is_there { 0 } else { own };
                parameters.bytes += (in_full + elements * copied) as u64;
                if frozen_from == FrozenFrom::Checkpoint || !is_left_out(description) {
                    parameters.in_checkpoint += in_full as u64;
                }
                if owner != stage && *trained {
                    let bytes = if copied > 0 { elements * copied } else { own };
                    parameters.of_copies.push((owner, bytes as u64));
                } else if *trained {
                    let bytes = (elements * size_of::<f32>()) as u64;
                    parameters.gradients += bytes;
                    parameters.largest = parameters.largest.max(bytes);
                }
            }
            parameters
        };
        stages.iter().enumerate().map(&mut sizes).collect()
    }
}

/// The measurements of a rehearsal (a step that only measures memory), from which the memory estimate is computed.
pub(crate) struct Rehearsal<'a> {
    pub(crate) plan: Plan,
    pub(crate) stages: &'a [(Device, Parameters)],
    /// The device and the parameter sizes of each stage, for every data-parallel replica except replica 0.
    pub(crate) elsewhere: &'a [Vec<(Device, Parameters)>],
    /// The number of groups of micro-batches whose gradients are summed separately, before the sums of the groups are
    /// added up.
    pub(crate) groups: usize,
    pub(crate) threads: KernelThreads,
    pub(crate) rollback: Rollback,
    /// Whether optimizer states already existed before the rehearsal (the step that measures memory), because the
    /// optimizers had stepped.
    pub(crate) stepped: bool,
    /// The bytes of optimizer states that each stage moved to the host in the rehearsal (the step that measures
    /// memory).
    pub(crate) states_on_host: Vec<u64>,
    /// For each stage, the peak bytes of the second micro-batch's parameter gradients that were not yet added to the
    /// gradient sums.
    pub(crate) gradients_beside: Vec<u64>,
    /// The events (timed computations, transfers and waits) that each worker of replica 0 recorded in the rehearsal.
    pub(crate) rows: Vec<Vec<Event>>,
}

impl Rehearsal<'_> {
    /// Returns the total time of the backward passes of all stages on the second micro-batch of the rehearsal (the step
    /// that measures memory).
    pub(crate) fn backwards(&self) -> Duration {
        let is_backward = |event: &&Event| match event.activity {
            Activity::Instruction(Instruction::Compute(action)) => {
                action.compute != Compute::Forward && action.micro_batch == 1
            }
            _ => false,
        };
        self.rows.iter().flatten().filter(is_backward).map(Event::worked).sum()
    }

    /// Computes the memory estimate from the recorded events. Returns `None` if memory was not measured, or if a worker
    /// has stages on devices with separate memory, because an estimate has one device for each worker.
    pub(crate) fn estimate(self) -> Option<MemoryEstimate> {
        let device = |action: &Action| &self.stages[action.stage].0;
        let is_on_one = |row: &Vec<Action>| row.iter().all(|action| share_memory(device(action), device(&row[0])));
        if !self.plan.rows().iter().all(is_on_one) {
            return None;
        }
        let stages = (0..self.stages.len()).map(|stage| self.stage(stage)).collect::<Option<Vec<_>>>()?;
        let other = self.rows.iter().map(|row| self.other(row, &stages)).collect::<Option<Vec<_>>>()?;
        let (steps, copies, groups) = (Steps::Apart, Copies::None, self.groups);
        let (threads, rollback) = (self.threads, self.rollback);
        let leaf =
            |(device, parameters): &(Device, Parameters)| Leaf { device: device.clone(), parameters: parameters.bytes };
        let leaves = self.elsewhere.iter().map(|stages| stages.iter().map(leaf).collect()).collect();
        let plan = Arc::new(self.plan);
        Some(MemoryEstimate {
            plan,
            stages,
            other,
            beside_workers: 0,
            threads,
            rollback,
            leaves,
            groups,
            recomputed: None,
            steps,
            copies,
        })
    }

    /// Returns the bytes that a worker still has allocated after the rehearsal (the step that measures memory) is
    /// rolled back, without parameters, optimizer states, and matrix-product buffers on the CPU. `row` has the worker's
    /// recorded events. Returns 0 on a GPU, and `None` if memory was not measured.
    fn other(&self, row: &[Event], stages: &[StageEstimate]) -> Option<u64> {
        let undone = || row.iter().filter(|event| event.activity == Activity::Follow);
        let last = undone().next_back()?;
        // On a GPU the measured memory is that of all stages there, so it cannot be attributed to one worker.
        if !is_host(&stages[last.stage].device) {
            return Some(0);
        }
        let resident = |stage: &StageEstimate| stage.parameters + if self.stepped { stage.optimizer } else { 0 };
        let known: u64 = undone().map(|event| resident(&stages[event.stage])).sum();
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
        // The input-gradient half of a split backward pass leaves some bytes neither freed nor sent. The
        // weight-gradient half frees them.
        let left = |over: &Over| over.kept - on_their_way;
        let input_gradient = backwards[1].as_ref().map_or(forward.kept, |over| forward.kept + left(over));
        let input = stage.checked_sub(1).filter(|&previous| !share_memory(&self.stages[previous].0, device));
        let input = input.map_or(0, |previous| self.sent(previous, Carried::Activation));
        Some(StageEstimate {
            device: device.clone(),
            parameters: parameters.bytes,
            parameters_in_checkpoint: parameters.in_checkpoint,
            gradients: parameters.gradients,
            // A step allocates new parameters and optimizer states, and the rollback frees both.
            optimizer: u64::try_from(-undone.kept).unwrap_or(0).saturating_sub(parameters.gradients),
            optimizer_on_host: self.states_on_host[stage],
            activations: StageMemory {
                forward: (forward.kept.max(0) as u64 + input) as f64,
                input_gradient: input_gradient.max(0) as f64,
            },
            forward: forward.above_end,
            // Bytes that an input-gradient half leaves allocated are already counted in `activations`.
            backward: backwards
                .iter()
                .flatten()
                .map(|over| over.above_start - left(over).clamp(0, over.above_start as i64) as u64)
                .max()?,
            flush: step.above_start,
            output: self.sent(stage, Carried::Activation),
            input_gradients,
            gradients_beside: self.gradients_beside[stage],
            independent_of_rows: IndependentOfRows::gradients(
                self.gradients_beside[stage] + tied_gradients.iter().map(|(_, bytes)| bytes).sum::<u64>(),
                parameters.largest,
            ),
            tied_gradients,
            largest: parameters.largest,
        })
    }

    /// Returns the size in bytes of a stage's largest transfer of activations or of gradients (`carried`); 0 if it sent
    /// none.
    fn sent(&self, stage: usize, carried: Carried) -> u64 {
        sent(stage, carried, &self.rows).max().unwrap_or(0)
    }

    /// Returns how a worker's allocated memory changed over one activity of a stage, such as a forward pass or the
    /// optimizer step; `None` if memory was not measured.
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

/// The change of a worker's allocated memory over one activity, such as a forward pass or the optimizer step, in bytes.
struct Over {
    /// The net change in bytes: allocated minus freed during one activity of a worker, such as a forward pass.
    kept: i64,
    /// The worker's peak memory during the activity (such as a forward pass) minus its allocated memory before the
    /// activity, in bytes.
    above_start: u64,
    /// The worker's peak memory during the activity (such as a forward pass) minus its allocated memory after the
    /// activity, in bytes.
    above_end: u64,
}
