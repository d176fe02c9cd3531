//! Makes variants of a configured pipeline for a verification, which compares the pipeline's training with the same
//! training on one device. Also returns the settings that the verification reads.

use std::thread::available_parallelism;

use stageline_nn::Recompute;
use stageline_schedule::OneFOneB;

use crate::build::builder::PipelineBuilder;
use crate::model::payload::Payload;
use crate::update::clip::Clip;
use crate::update::flush::FlushConfig;
use crate::update::precision::Precision;

impl<In: Payload, Out: Payload, Target: Payload> PipelineBuilder<In, Out, Target> {
    /// Returns the configured precision, in which forwards and backwards compute.
    pub(crate) fn configured_precision(&self) -> Precision {
        self.precision
    }

    /// Returns the configured gradient clipping; `None` if gradients are not clipped.
    pub(crate) fn configured_clip(&self) -> Option<Clip> {
        self.flush.clip
    }

    /// Returns the number of micro-batches into which a batch is split: R x M for R data-parallel replicas with M
    /// micro-batches each.
    pub(crate) fn configured_micro_batches(&self) -> usize {
        self.replicas() * self.micro_batches
    }

    /// Returns the position of every batch norm layer of the model (burn's own, or an `AccumulatedBatchNorm`, whose
    /// statistics are updated once a step): the index of its stage, and its path in the stage's module.
    pub(crate) fn batch_norms(&self) -> &[(usize, String)] {
        &self.stages.owners.batch_norms
    }

    /// Returns the builder of the reference, which is the plain training with which a verification compares a pipeline:
    /// one replica with the same stages, optimizers and clipping, all on the first stage's device, in full precision
    /// and without recomputation. `micro_batches` is the number of micro-batches into which the reference splits a
    /// batch.
    pub(crate) fn reference(mut self, micro_batches: usize) -> Self {
        self.stages.recompute.fill(Recompute::Nothing);
        let first = self.stages.devices[0].clone();
        self.stages.devices.fill(first);
        self.flush = FlushConfig { clip: self.flush.clip, ..FlushConfig::default() };
        Self {
            micro_batches,
            replica_devices: Vec::new(),
            gradient_groups: None,
            schedule: Box::new(OneFOneB),
            channel_capacity: None,
            // All stages are on one device, where one stage computes at a time, so each may use all cores.
            cores_per_stage: available_parallelism().map_or(None, |cores| Some(cores.get())),
            precision: Precision::Full,
            loss_scale: None,
            tuned_for: None,
            ..self
        }
    }

    /// Whether any stage of the pipeline recomputes a part of its forward in its backwards.
    pub(crate) fn recomputes(&self) -> bool {
        self.stages.recompute.iter().any(|recompute| *recompute != Recompute::Nothing)
    }

    /// Turns recomputation off on all stages, so that each stage keeps all activations that its backwards need.
    pub(crate) fn without_recomputation(mut self) -> Self {
        self.stages.recompute.fill(Recompute::Nothing);
        self
    }

    /// Turns gradient clipping off, so that the optimizers step with the gradients as they were summed over all
    /// micro-batches.
    pub(crate) fn unclipped(mut self) -> Self {
        self.flush.clip = None;
        self
    }
}
