//! [`PipelineBuilder::build`]: validates the settings of a pipeline, assembles its stages and starts its workers.

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;

use burn::tensor::{Device, FloatDType};
use stageline_checkpoint::Checkpoint;
use stageline_schedule::Checked;

use crate::build::assemble::Assembled;
use crate::build::assembly::SharedSettings;
use crate::build::builder::PipelineBuilder;
use crate::build::fallbacks::Fallbacks;
use crate::build::validate::validate_progress;
use crate::build::watched::watched;
use crate::device::location::{communication_streams, is_host};
use crate::device::transfer_path::TransferPaths;
use crate::failure::build_error::BuildError;
use crate::memory::rehearsal::Parameters;
use crate::model::payload::Payload;
use crate::pipeline::workers::Prepared;
use crate::pipeline::{Common, Pipeline, Stepping};
use crate::state::layout::Layout;
use crate::state::mismatch::Mismatch;
use crate::state::run_settings::RunSettings;
use crate::threads::cores::Cores;
use crate::update::loss_scale::{LossScale, Scaler};

/// The default interval, in training steps, between synchronised steps, if any stage is on a device other than the
/// host's CPU. In a synchronised step, workers wait for their device after every action, such as a forward pass.
const SYNCHRONISE_EVERY: usize = 20;

impl<In: Payload, Out: Payload, Target: Payload> PipelineBuilder<In, Out, Target> {
    /// Builds the pipeline: validates the settings, generates and checks the plan, and starts one thread per worker.
    ///
    /// # Errors
    /// Returns [`BuildError`], whose message names the invalid values and how to correct them, in these cases:
    ///
    /// - A setting is invalid.
    /// - The schedule generates no plan, or a plan that cannot run.
    /// - A device does not support the dtypes of its stage, or lacks a kernel ([`fallbacks`](Self::fallbacks)).
    /// - The checkpoint does not fit the model.
    /// - A session (a connection to a device of another host) cannot be opened, or the host is lost while modules are
    ///   copied from or to it.
    /// - A thread cannot be started.
    pub fn build(mut self) -> Result<Pipeline<In, Out, Target>, BuildError> {
        let widened = self.frozen_in.rounded().filter(|_| self.frozen_in != self.precision);
        widened.iter().for_each(|narrow| self.stages.owners.widen_frozen(*narrow));
        let loss_scale = self.loss_scale.unwrap_or_else(|| LossScale::of(self.precision));
        self.validate(loss_scale)?;
        let plan = self.checked_plan()?;
        let (groups, devices) = (self.groups()?, self.devices_by_replica()?);
        let fallbacks = self.validate_devices(&devices)?;
        let cores = self.cores(&devices);
        let streams = self.streams(&plan, &devices);
        let tied: Vec<_> = self.stages.owners.shared.keys().copied().collect();
        let paths = TransferPaths::of(&devices, &tied);
        let parameters: Vec<_> =
            Parameters::by_replica(&self.stages.owners.tensors, &devices, self.precision, self.frozen_from);
        let layout =
            Layout::new(std::mem::take(&mut self.stages.owners.tensors), self.names.as_ref(), self.frozen_from)?;
        self.restore.as_ref().map_or(Ok(()), |checkpoint| validate_progress(checkpoint.progress, loss_scale))?;
        let restored = self.restore.as_ref().map(|checkpoint| layout.restore(checkpoint)).transpose();
        let restored = restored.map_err(BuildError::Checkpoint)?.unwrap_or_default();
        let all_on_host = devices.iter().flatten().all(is_host);
        let synchronise_every = self.synchronise_every.unwrap_or(if all_on_host { 0 } else { SYNCHRONISE_EVERY });
        let (settings, micro_batches) = (self.shared_settings(widened), self.replicas() * self.micro_batches);
        let (plan, stages) = (Arc::new(plan), self.stages);
        let (places, for_plan, on) = (stages.places(&devices), Arc::clone(&plan), devices.clone());
        let assemble = move || {
            let assembled = stages.assemble(&for_plan, &on, fallbacks, groups, settings, restored)?;
            // The chain's own modules are dropped here, so that they do not take up memory in addition to the workers'
            // copies.
            drop(stages.wire);
            Ok::<_, BuildError>((assembled, stages.scoring, stages.recompute))
        };
        let (assembled, scoring, recompute) = watched(&places, self.watchdog, assemble)??;
        let Assembled { replicas, unfit, learning_rate } = assembled;
        Mismatch::unless_empty(layout.unfit(unfit)).map_err(BuildError::Checkpoint)?;
        if let Some(checkpoint) = &self.restore {
            let now = RunSettings { micro_batches, gradient_groups: groups, learning_rate };
            warn_of_changes(checkpoint, now);
        }
        let known = streams.into_iter().zip(devices).zip(parameters);
        let prepared = replicas.into_iter().zip(known);
        let prepared = prepared.map(|((channels, runners), ((streams, devices), parameters))| Prepared {
            channels,
            runners,
            streams,
            stages: devices.into_iter().zip(parameters).collect(),
        });
        let restored = self.restore.map(|checkpoint| (checkpoint.progress, RunSettings::read(&checkpoint.run)));
        let (progress, before) = restored.unzip();
        let stepping = Stepping {
            scaler: Scaler::resumed(loss_scale, progress.and_then(|progress| progress.loss_scale)),
            tuned_for: self.tuned_for,
            flush: self.flush,
            synchronise_every,
            rollback: self.rollback,
            recompute: recompute.into(),
        };
        let common = Common { plan, scoring, groups, cores, stepping, layout, watchdog: self.watchdog };
        paths.log();
        let mut pipeline = Pipeline::start(prepared.collect(), common)?;
        let learning_rate = before.flatten().and_then(|before| before.learning_rate);
        progress.into_iter().for_each(|progress| pipeline.resume(progress, learning_rate));
        Ok(pipeline)
    }

    fn shared_settings(&self, widened: Option<FloatDType>) -> SharedSettings {
        let refuses_fallbacks = self.fallbacks == Some(Fallbacks::Refuse);
        SharedSettings {
            precision: self.precision,
            widened,
            rollback: self.rollback,
            frozen_from: self.frozen_from,
            refuses_fallbacks,
        }
    }

    /// Returns the CPU cores of the workers: the number that the user has set, or an even share of the machine's cores.
    /// Logs a warning if several were set and this build lets burn's own operations use only one of them.
    fn cores(&self, devices: &[Vec<Device>]) -> Cores {
        let Some(cores) = self.cores else {
            return Cores::Shared(available_parallelism().map_or(1, NonZero::get));
        };
        if let Cores::Each(cores @ 2..) = cores
            && !cfg!(feature = "rayon")
            && devices.iter().flatten().any(is_host)
        {
            tracing::warn!(
                "burn's own operations use one of the {cores} cores of a stage, unlike the layers of stageline-nn; to let them \
                 use all cores, build with the feature `rayon` of the crate stageline"
            );
        }
        cores
    }

    /// Returns, for each replica and stage, the index of the communication stream (a GPU's queue of transfers to other
    /// GPUs) on the stage's device. `None` for a device whose transfers need no order.
    fn streams(&self, plan: &Checked, devices: &[Vec<Device>]) -> Vec<Vec<Option<usize>>> {
        let stages = self.stages.devices.len();
        if self.ordered_transfers {
            // Each worker's index serves as a stream index, as if workers with the same index in all replicas shared a
            // device.
            return vec![(0..stages).map(|stage| Some(plan.placement().worker(stage))).collect(); devices.len()];
        }
        communication_streams(&devices.concat()).chunks(stages).map(<[_]>::to_vec).collect()
    }
}

/// Logs a warning for each setting of a resumed training run that differs from its checkpoint: the number of
/// micro-batches, the number of gradient groups, or the learning rate. `now` has this pipeline's settings, with the
/// learning rate that its schedule has at the checkpoint's last optimizer step.
fn warn_of_changes(checkpoint: &Checkpoint, now: RunSettings) {
    if let Some(before) = RunSettings::read(&checkpoint.run) {
        now.changes(before).into_iter().for_each(|change| tracing::warn!("{change}"));
    }
}
