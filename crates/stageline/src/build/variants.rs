//! Makes variants of a configured pipeline for a verification, which compares the pipeline's training with the same
//! training on one device. [`Configured`] makes the variants, and returns the settings that the verification reads.

use std::collections::HashSet;
use std::num::NonZero;
use std::thread::available_parallelism;

use stageline_nn::Recompute;
use stageline_schedule::{Action, Compute, OneFOneB, Plan, Schedule};

use crate::build::builder::PipelineBuilder;
use crate::build::fallbacks::Fallbacks;
use crate::device::location::is_host;
use crate::model::payload::Payload;
use crate::threads::cores::Cores;
use crate::update::clip::Clip;
use crate::update::flush::FlushConfig;
use crate::update::precision::Precision;

/// The builder of a pipeline that a verification compares with training on one device. The verification reads the
/// settings of the pipeline, and makes variants of it. [`PipelineBuilder`] itself only sets and validates settings.
pub(crate) struct Configured<In: Payload, Out: Payload, Target: Payload>(pub(crate) PipelineBuilder<In, Out, Target>);

impl<In: Payload, Out: Payload, Target: Payload> Configured<In, Out, Target> {
    pub(crate) fn precision(&self) -> Precision {
        self.0.precision
    }

    pub(crate) fn clip(&self) -> Option<Clip> {
        self.0.flush.clip
    }

    pub(crate) fn recompute(&self) -> &[Recompute] {
        &self.0.stages.recompute
    }

    /// Returns the number of micro-batches into which a batch is split: R x M for R data-parallel replicas with M
    /// micro-batches each.
    pub(crate) fn micro_batches(&self) -> usize {
        self.0.replicas() * self.0.micro_batches
    }

    /// Returns every batch norm of the model, as the index of its stage and its path in the stage's module.
    pub(crate) fn batch_norms(&self) -> &[(usize, String)] {
        &self.0.stages.owners.batch_norms
    }

    /// Returns the stage and the micro-batch of each backward pass that the configured schedule splits: the input
    /// gradient is computed first, and the weight gradients later. Micro-batches are counted within a replica.
    pub(crate) fn split_backwards(&self) -> HashSet<(usize, usize)> {
        let plan = self.0.schedule.plan(self.0.stages.devices.len(), self.0.micro_batches);
        let second_half =
            |action: &Action| (action.compute == Compute::WeightGradient).then_some((action.stage, action.micro_batch));
        plan.map_or_else(|_| HashSet::new(), |plan| plan.rows().iter().flatten().filter_map(second_half).collect())
    }

    /// Whether every stage of every replica is on the CPU of this host, whose kernels are deterministic.
    pub(crate) fn is_on_host(&self) -> bool {
        self.0.stages.devices.iter().chain(self.0.replica_devices.iter().flatten()).all(is_host)
    }

    fn cores(&self) -> usize {
        let machine = || Cores::Shared(available_parallelism().map_or(1, NonZero::get));
        let workers = self.0.replicas() * self.0.stages.devices.len() / self.0.schedule.chunks().max(1);
        self.0.cores.unwrap_or_else(machine).of_one(workers)
    }

    /// Returns the builder of the reference run that a verification compares the pipeline with. It has the same stages,
    /// optimizers, clipping and policy for non-finite steps. It runs as one replica on one device, in full precision
    /// and without recomputation. `micro_batches` is its number of micro-batches. Operations without a kernel only give
    /// a warning, because the reference can have another device or dtype than the pipeline.
    pub(crate) fn reference(self, micro_batches: usize) -> PipelineBuilder<In, Out, Target> {
        let mut builder = self.without_recomputation();
        let first = builder.stages.devices[0].clone();
        builder.stages.devices.fill(first);
        let FlushConfig { clip, on_non_finite, .. } = builder.flush;
        builder.flush = FlushConfig { clip, on_non_finite, ..FlushConfig::default() };
        PipelineBuilder {
            micro_batches,
            replica_devices: Vec::new(),
            gradient_groups: None,
            schedule: Box::new(OneFOneB),
            channel_capacity: None,
            // All stages are on one device, where one stage computes at a time, so each may use all cores.
            cores: available_parallelism().map_or(None, |cores| Some(Cores::InTurn(cores.get()))),
            precision: Precision::Full,
            fallbacks: Some(Fallbacks::Warn),
            loss_scale: None,
            tuned_for: None,
            ..builder
        }
    }

    /// Returns the builder of the [`reference`](Self::reference) (one replica on one device, in full precision), but
    /// without gradient clipping.
    pub(crate) fn unclipped_reference(mut self, micro_batches: usize) -> PipelineBuilder<In, Out, Target> {
        self.0.flush.clip = None;
        self.reference(micro_batches)
    }

    /// Returns the builder of the plain loop: one thread runs all stages on one device, one micro-batch after the
    /// other, without recomputation. A verification compares its parameters with those of the pipeline, bit for bit.
    /// Settings that affect these bits, such as precision and clipping, stay the same. Operations without a kernel only
    /// give a warning, because a stage's device can differ from that in the pipeline.
    ///
    /// If `splits` is true, the plain loop splits the same backward passes into input gradient and weight gradient as
    /// the pipeline's schedule does. Otherwise it splits none.
    pub(crate) fn plain_loop(self, splits: bool) -> PipelineBuilder<In, Out, Target> {
        let split = if splits { self.split_backwards() } else { HashSet::new() };
        let (micro_batches, cores) = (self.micro_batches(), self.cores());
        let mut builder = self.without_recomputation();
        let of_replica = builder.micro_batches;
        let is_split = |stage: usize, micro_batch: usize| split.contains(&(stage, micro_batch % of_replica));
        let (stages, groups) = (builder.stages.devices.len(), builder.gradient_groups.unwrap_or(builder.replicas()));
        let first = builder.stages.devices[0].clone();
        builder.stages.devices.fill(first);
        builder.flush = FlushConfig { health_every: 0, noise_every: 0, ..builder.flush };
        PipelineBuilder {
            micro_batches,
            replica_devices: Vec::new(),
            gradient_groups: Some(groups),
            schedule: Box::new(on_one_thread(stages, micro_batches, is_split)),
            channel_capacity: None,
            cores: Some(Cores::InTurn(cores)),
            fallbacks: Some(Fallbacks::Warn),
            tuned_for: None,
            ordered_transfers: false,
            ..builder
        }
    }

    /// Returns the builder of the same pipeline without recomputation.
    pub(crate) fn without_recomputation(self) -> PipelineBuilder<In, Out, Target> {
        let Self(mut builder) = self;
        builder.stages.recompute.fill(Recompute::Nothing);
        builder
    }

    /// Returns the builder of the same pipeline in full precision. Operations without a kernel only give a warning,
    /// because a device may have kernels for the lower precision and not for the full one, such as f64.
    pub(crate) fn in_full_precision(self) -> PipelineBuilder<In, Out, Target> {
        self.0.precision(Precision::Full).fallbacks(Fallbacks::Warn)
    }
}

/// Returns a plan (an order of actions) in which one worker runs all stages. Each micro-batch runs forward and then
/// backward through all stages before the next one begins. `is_split` returns which backward passes, by stage and
/// micro-batch, are split into input gradient and weight gradient. The weight gradients come at the end of their
/// micro-batch.
fn on_one_thread(stages: usize, micro_batches: usize, is_split: impl Fn(usize, usize) -> bool) -> Plan {
    let mut row = Vec::new();
    for micro_batch in 0..micro_batches {
        let of = |stage, compute| Action { stage, compute, micro_batch };
        let backward = |stage| if is_split(stage, micro_batch) { Compute::InputGradient } else { Compute::Backward };
        row.extend((0..stages).map(|stage| of(stage, Compute::Forward)));
        row.extend((0..stages).rev().map(|stage| of(stage, backward(stage))));
        let split = (0..stages).rev().filter(|stage| is_split(*stage, micro_batch));
        row.extend(split.map(|stage| of(stage, Compute::WeightGradient)));
    }
    Plan::new(vec![row])
}

#[cfg(test)]
mod tests {
    use stageline_schedule::check;

    use super::*;

    #[test]
    fn a_plain_loop_has_one_worker_and_completes() {
        assert_eq!(on_one_thread(2, 2, |_, _| false).to_csv(), "0F0,1F0,1B0,0B0,0F1,1F1,1B1,0B1\n");
        assert_eq!(on_one_thread(2, 1, |_, _| true).to_csv(), "0F0,1F0,1I0,0I0,1W0,0W0\n");
        let first_of_stage_1 = |stage: usize, micro_batch: usize| (stage, micro_batch) == (1, 0);
        assert_eq!(on_one_thread(2, 2, first_of_stage_1).to_csv(), "0F0,1F0,1I0,0B0,1W0,0F1,1F1,1B1,0B1\n");
        for splits in [false, true] {
            assert!(check(on_one_thread(3, 4, |_, _| splits), 4).is_ok());
        }
        assert!(check(on_one_thread(2, 2, first_of_stage_1), 2).is_ok());
    }
}
