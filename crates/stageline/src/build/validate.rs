//! Checks the settings of a pipeline: each setting alone, all settings together, and the plan (order of actions) that
//! results from them.

use burn::tensor::Device;
use stageline_checkpoint::Progress;
use stageline_schedule::{Checked, Schedule, check};

use crate::build::builder::PipelineBuilder;
use crate::failure::build_error::BuildError;
use crate::model::payload::Payload;
use crate::threads::cores::Cores;
use crate::update::clip::Clip;
use crate::update::loss_scale::LossScale;
use crate::update::precision::Precision;

/// The largest number of optimizer steps in a checkpoint from which training can resume. On resume, the learning rate
/// scheduler of each stage advances by this number of steps, which takes less than a second per stage up to this limit.
const MOST_STEPS: u64 = 10_000_000;

/// Returns an error if training cannot resume from the progress that a checkpoint records, for one of these reasons:
///
/// - The checkpoint has more optimizer steps than training steps, more than 10 million optimizer steps, or more than
///   2^53 training steps.
/// - The checkpoint's loss scale is outside the range of this training run's dynamic loss scale.
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
    /// Checks the stages and all settings that do not depend on the plan (order of actions), such as gradient clipping.
    /// Returns an error for the first check that fails.
    pub(super) fn validate(&self, loss_scale: LossScale) -> Result<(), BuildError> {
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
        if self.cores == Some(Cores::Each(0)) {
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

    pub(super) fn replicas(&self) -> usize {
        1 + self.replica_devices.len()
    }

    /// Returns the number of groups of micro-batches whose gradients are summed separately, over all replicas. Returns
    /// an error if the configured number is not allowed. With one replica, it must divide the number of micro-batches;
    /// with several, it must be the number of replicas.
    pub(super) fn groups(&self) -> Result<usize, BuildError> {
        let (replicas, micro_batches) = (self.replicas(), self.micro_batches);
        let groups = self.gradient_groups.unwrap_or(replicas);
        let can_be = match replicas {
            1 => groups > 0 && micro_batches.is_multiple_of(groups),
            _ => groups == replicas,
        };
        if can_be { Ok(groups) } else { Err(BuildError::GradientGroups { groups, replicas, micro_batches }) }
    }

    /// Returns the device of each stage, with one list for each replica. Fails if a replica does not have one device
    /// for each stage.
    pub(super) fn devices_by_replica(&self) -> Result<Vec<Vec<Device>>, BuildError> {
        let stages = self.stages.devices.len();
        let all: Vec<_> = [&self.stages.devices].into_iter().chain(&self.replica_devices).cloned().collect();
        match all.iter().position(|devices| devices.len() != stages) {
            Some(replica) => Err(BuildError::ReplicaDevices { replica, devices: all[replica].len(), stages }),
            None => Ok(all),
        }
    }

    /// Generates and checks the plan of a step (the order of actions on each worker). Returns an error if the schedule
    /// has no plan for the configured stages and micro-batches, or if the plan would deadlock.
    pub(super) fn checked_plan(&self) -> Result<Checked, BuildError> {
        let (stages, micro_batches, schedule) = (self.stages.devices.len(), self.micro_batches, self.schedule.name());
        let plan = self.schedule.plan(stages, micro_batches);
        // A plan is also a schedule, and returns an error for any numbers of stages and micro-batches except its own.
        // So this call rejects a plan of the wrong size from a custom schedule.
        let plan = plan.and_then(|plan| plan.plan(stages, micro_batches));
        let plan = plan.map_err(|cause| BuildError::Schedule { schedule, cause })?;
        // A channel never contains more than the M micro-batches of a step, so more capacity makes no difference.
        let capacity = self.channel_capacity.map_or(micro_batches, |capacity| capacity.min(micro_batches));
        check(plan, capacity).map_err(BuildError::Check)
    }
}
