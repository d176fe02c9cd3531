//! [`PipelineBuilder::build`]: validates all settings together, generates and checks the plan, and starts the
//! pipeline's workers.

use stageline_schedule::{Checked, Schedule, check};

use crate::build::builder::PipelineBuilder;
use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;

use burn::tensor::Device;
use stageline_checkpoint::Progress;

use crate::build::assemble::Assembled;
#[cfg(feature = "cuda")]
use crate::device::location::between_cuda;
use crate::device::location::{communication_streams, is_host};
use crate::failure::build_error::BuildError;
use crate::memory::rehearsal::Parameters;
use crate::model::payload::Payload;
use crate::pipeline::workers::Prepared;
use crate::pipeline::{Common, Pipeline, Stepping};
use crate::state::layout::Layout;
use crate::state::mismatch::Mismatch;
use crate::threads::cores::Cores;
use crate::update::clip::Clip;
use crate::update::loss_scale::{LossScale, Scaler};
use crate::update::precision::Precision;

/// The largest number of optimizer steps in a checkpoint from which training can resume; more is an error. Each stage's
/// learning rate scheduler is stepped that many times, which takes less than a second per stage.
pub(super) const MOST_STEPS: u64 = 10_000_000;

/// The default interval, in training steps, between synchronised steps, in which workers wait for their device after
/// every action. It applies if any stage is on a device other than the host's CPU.
pub(super) const SYNCHRONISE_EVERY: usize = 20;

/// Returns an error if the progress recorded in a checkpoint is impossible (more optimizer steps than training steps)
/// or too large to resume from (more than 10 million optimizer steps, or more than 2^53 training steps), or if its loss
/// scale is not one that the dynamic loss scale of this training can have.
pub(super) fn validate_progress(progress: Progress, config: LossScale) -> Result<(), BuildError> {
    let Progress { steps, optimizer_steps, loss_scale } = progress;
    if optimizer_steps > MOST_STEPS || optimizer_steps > steps || steps > 1 << 53 {
        return Err(BuildError::Steps { steps, optimizer_steps, most: MOST_STEPS });
    }
    if let (LossScale::Dynamic(config), Some(state)) = (config, loss_scale)
        && !config.range().contains(&state.scale)
    {
        let (lowest, highest) = config.range().into_inner();
        return Err(BuildError::RestoredLossScale { scale: state.scale, lowest, highest });
    }
    Ok(())
}

impl<In: Payload, Out: Payload, Target: Payload> PipelineBuilder<In, Out, Target> {
    /// Builds the pipeline: validates the settings, generates and checks the plan, and starts one thread per worker.
    ///
    /// # Errors
    /// Returns [`BuildError`] if a setting is invalid, the schedule generates no plan or a plan that cannot run, the
    /// checkpoint does not fit the model, a session (a connection to a device of another host) cannot be opened, or a
    /// thread cannot be started. The message names the invalid values and how to correct them.
    pub fn build(mut self) -> Result<Pipeline<In, Out, Target>, BuildError> {
        let loss_scale = self.loss_scale.unwrap_or_else(|| LossScale::of(self.precision));
        self.validate(loss_scale)?;
        let plan = self.checked_plan()?;
        let (groups, devices) = (self.groups()?, self.devices_by_replica()?);
        let machine = || Cores::Shared(available_parallelism().map_or(1, NonZero::get));
        let cores = self.cores_per_stage.map_or_else(machine, Cores::Each);
        let streams = self.streams(&plan, &devices);
        #[cfg(feature = "cuda")]
        let several_gpus =
            devices.iter().any(|devices| devices.windows(2).any(|pair| between_cuda(&pair[0], &pair[1])));
        let parameters: Vec<_> = Parameters::by_replica(&self.stages.owners.tensors, &devices, self.precision);
        let layout = Layout::new(std::mem::take(&mut self.stages.owners.tensors), self.names.as_ref())?;
        self.restore.as_ref().map_or(Ok(()), |checkpoint| validate_progress(checkpoint.progress, loss_scale))?;
        let restored = self.restore.as_ref().map(|checkpoint| layout.restore(checkpoint)).transpose();
        let restored = restored.map_err(BuildError::Checkpoint)?.unwrap_or_default();
        let all_on_host = self.stages.devices.iter().chain(self.replica_devices.iter().flatten()).all(is_host);
        let synchronise_every = self.synchronise_every.unwrap_or(if all_on_host { 0 } else { SYNCHRONISE_EVERY });
        let Assembled { replicas, unfit } =
            self.stages.assemble(&plan, &devices, groups, self.precision, self.rollback, restored)?;
        Mismatch::unless_empty(layout.unfit(unfit)).map_err(BuildError::Checkpoint)?;
        let known = streams.into_iter().zip(devices).zip(parameters);
        let prepared = replicas.into_iter().zip(known);
        let prepared = prepared.map(|((channels, runners), ((streams, devices), parameters))| Prepared {
            channels,
            runners,
            streams,
            stages: devices.into_iter().zip(parameters).collect(),
        });
        let progress = self.restore.map(|checkpoint| checkpoint.progress);
        let stepping = Stepping {
            scaler: Scaler::resumed(loss_scale, progress.and_then(|progress| progress.loss_scale)),
            tuned_for: self.tuned_for,
            flush: self.flush,
            synchronise_every,
            rollback: self.rollback,
            recompute: self.stages.recompute.into(),
        };
        let common = Common {
            plan: Arc::new(plan),
            scoring: self.stages.scoring,
            groups,
            cores,
            stepping,
            layout,
            watchdog: self.watchdog,
        };
        #[cfg(feature = "cuda")]
        if several_gpus {
            crate::device::nccl::log();
        }
        // The chain's own modules are dropped first, so that they are not in memory beside the workers' copies.
        drop(self.stages.wire);
        let mut pipeline = Pipeline::start(prepared.collect(), common)?;
        progress.into_iter().for_each(|progress| pipeline.resume(progress));
        Ok(pipeline)
    }

    /// Checks the stages and the settings that do not depend on a plan, such as clipping, loss scale and watchdog.
    /// Returns an error for the first check that fails.
    fn validate(&self, loss_scale: LossScale) -> Result<(), BuildError> {
        let owners = &self.stages.owners;
        if let Some(stage) = owners.clipping {
            return Err(BuildError::ClippingOptimizer { stage });
        }
        if let Some(bound) = self.flush.clip.map(Clip::bound).filter(|bound| !bound.is_finite() || *bound <= 0.0) {
            return Err(BuildError::Clip { bound });
        }
        if let Some(stage) = owners.plain_batch_norm.filter(|_| self.precision != Precision::Full) {
            return Err(BuildError::BatchNormPrecision { stage, precision: self.precision });
        }
        if let Some((stage, path)) = owners.batch_norms.first().filter(|_| self.replicas() > 1) {
            return Err(BuildError::BatchNormReplicas { stage: *stage, path: path.clone() });
        }
        if !loss_scale.is_sound() {
            return Err(BuildError::LossScale { scale: loss_scale });
        }
        if let Some(watchdog) = self.watchdog.filter(|watchdog| !watchdog.is_sound()) {
            return Err(BuildError::Watchdog { watchdog });
        }
        if self.cores_per_stage == Some(0) {
            return Err(BuildError::NoCores);
        }
        if let Some(stages) = owners.misshapen {
            return Err(BuildError::TiedShapes { stages });
        }
        if let Some(stages) = owners.half_frozen() {
            return Err(BuildError::HalfFrozen { stages });
        }
        Ok(())
    }

    /// Returns R, the number of data-parallel replicas of the configured pipeline.
    pub(super) fn replicas(&self) -> usize {
        1 + self.replica_devices.len()
    }

    /// Returns the number of groups of micro-batches whose gradients are summed separately in a step, over all
    /// replicas. With several replicas there must be one group per replica; with one replica, the number must divide
    /// the number of micro-batches. Returns an error if this is not so.
    fn groups(&self) -> Result<usize, BuildError> {
        let (replicas, micro_batches) = (self.replicas(), self.micro_batches);
        let groups = self.gradient_groups.unwrap_or(replicas);
        let can_be = match replicas {
            1 => groups > 0 && micro_batches.is_multiple_of(groups),
            _ => groups == replicas,
        };
        if can_be { Ok(groups) } else { Err(BuildError::GradientGroups { groups, replicas, micro_batches }) }
    }

    /// Returns the device of every stage, replica by replica. Fails if a replica does not have one device per stage.
    fn devices_by_replica(&self) -> Result<Vec<Vec<Device>>, BuildError> {
        let stages = self.stages.devices.len();
        let all: Vec<_> = [&self.stages.devices].into_iter().chain(&self.replica_devices).cloned().collect();
        match all.iter().position(|devices| devices.len() != stages) {
            Some(replica) => Err(BuildError::ReplicaDevices { replica, devices: all[replica].len(), stages }),
            None => Ok(all),
        }
    }

    /// Returns, by replica and stage, the number of the communication stream (a GPU's queue of transfers to other GPUs)
    /// in which the transfers of each stage's device are ordered; `None` for a device whose transfers need no order.
    fn streams(&self, plan: &Checked, devices: &[Vec<Device>]) -> Vec<Vec<Option<usize>>> {
        let stages = self.stages.devices.len();
        if self.ordered_transfers {
            // Each worker's number stands for a device, which is shared by the workers of that number in all replicas.
            return vec![(0..stages).map(|stage| Some(plan.placement().worker(stage))).collect(); devices.len()];
        }
        communication_streams(&devices.concat()).chunks(stages).map(<[_]>::to_vec).collect()
    }

    /// Generates the schedule's plan for the configured stages and micro-batches, and returns it. Returns an error if
    /// there is no such plan, or if it would deadlock with the configured channel capacity.
    fn checked_plan(&self) -> Result<Checked, BuildError> {
        let (stages, micro_batches, schedule) = (self.stages.devices.len(), self.micro_batches, self.schedule.name());
        let plan = self.schedule.plan(stages, micro_batches);
        // A plan, used as a schedule, rejects every shape but its own. So this rejects a custom schedule's plan for
        // another number of stages or micro-batches.
        let plan = plan.and_then(|plan| plan.plan(stages, micro_batches));
        let plan = plan.map_err(|cause| BuildError::Schedule { schedule, cause })?;
        // A channel never contains more than the M micro-batches of a step, so more capacity makes no difference.
        let capacity = self.channel_capacity.map_or(micro_batches, |capacity| capacity.min(micro_batches));
        check(plan, capacity).map_err(BuildError::Check)
    }
}
