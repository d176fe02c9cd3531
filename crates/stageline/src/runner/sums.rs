//! A stage's gradient sums ([`StageSums`]) over micro-batches, and their reduction over replicas. Also reads losses,
//! metrics and gradient norms from the device ([`Numbers`]).

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::FloatDType;

use crate::failure::stop::{Stopped, Waits};
use crate::runner::output::Results;
use crate::transfer::replicas::Collective;
use crate::update::gradient_sum::GradientSum;
use crate::update::ledger::Ledger;
use crate::update::micro_batch_gradients::MicroBatchGradients;
use crate::update::norm::SquaredNorms;

/// A stage's gradient sums in the current step, and their copy for a rollback.
pub(super) struct StageSums {
    gradients: GradientSum,
    /// A copy of the gradient sums for rolling back a speculative step, whose optimizer step is made before the common
    /// verdict (step or skip) is known. `None` at other times.
    kept: Option<GradientsParams>,
    /// Number of times that this stage has added up the gradient sums of all data-parallel replicas in the current
    /// step.
    reductions: usize,
}

/// The norms, losses and metrics that a stage reads from its device at the end of a step or evaluation, all in one
/// transfer. The fields are the same as in the stage's `Outcome`.
pub(super) struct Numbers {
    pub(super) squared_norms: Vec<(ParamId, f64)>,
    pub(super) squared_norm_of_each: Option<f64>,
    pub(super) losses: Vec<Vec<f64>>,
    pub(super) metrics: Vec<Vec<f64>>,
}

impl StageSums {
    /// Creates empty gradient sums. Gradients are accumulated in the float dtype `dtype`, or in their own dtype if it
    /// is `None`. Every `per_group` consecutive micro-batches are summed as one group.
    pub(super) fn new(dtype: Option<FloatDType>, per_group: usize) -> Self {
        Self { gradients: GradientSum::new(dtype, per_group), kept: None, reductions: 0 }
    }

    /// Adds one micro-batch's gradients to the sums, and computes and adds its deferred weight gradients.
    ///
    /// Returns the ids of parameters that have two gradients in this micro-batch, one of which a layer has already
    /// added to the sums during the backward pass. These two should have been added to each other first, so the last
    /// bits of the sum may differ.
    pub(super) fn add<M: Module>(
        &mut self,
        module: &M,
        micro_batch: usize,
        gradients: MicroBatchGradients,
    ) -> HashSet<ParamId> {
        self.gradients.add(module, micro_batch, gradients)
    }

    /// Runs `backward`, an unsplit backward pass (input and weight gradients together) of `micro_batch`. During it,
    /// layers add the gradients of the parameters `ids` directly to the sums, if that gives the same bits as adding
    /// them later. Returns the result of `backward`, and the layers' gradients that [`add`](Self::add) must still add.
    pub(super) fn adding_at_once<R>(
        &mut self,
        micro_batch: usize,
        ids: HashSet<ParamId>,
        backward: impl FnOnce() -> R,
    ) -> (R, GradientsParams) {
        self.gradients.adding_at_once(micro_batch, ids, backward)
    }

    /// Turns on, until the end of the step, the measurement of the squared norm of each micro-batch's gradients.
    pub(super) fn measure_each(&mut self) {
        self.gradients.measure_each();
    }

    /// Completes the gradient sums of a step. With several data-parallel replicas, replica 0 adds up the sums of all
    /// replicas, and the other replicas send their sums to replica 0.
    pub(super) fn reduce<M: Module>(
        &mut self,
        module: &M,
        collective: &Collective,
        step: usize,
        waits: &Waits,
    ) -> Result<(), Stopped> {
        let reductions = &mut self.reductions;
        self.gradients.end(module, |sums| {
            *reductions += collective.reductions();
            collective.reduce(module, step, sums, waits)
        })
    }

    /// Divides the gradient sums by the loss scale, and returns the squared norm of each parameter's sum.
    pub(super) fn unscale<M: Module>(&mut self, module: &M, loss_scale: f64) -> SquaredNorms {
        self.gradients.unscale(module, loss_scale);
        self.gradients.squared_norms(module)
    }

    /// Reads the results of a step or evaluation from the stage's device, all in one transfer: the squared norms
    /// `squares`, and the losses and metrics in `results`. If the step measures the squared norms of single
    /// micro-batches, reads these too, and removes the loss scale `loss_scale` from them.
    pub(super) fn read(&mut self, squares: &SquaredNorms, results: Results, loss_scale: f64) -> Numbers {
        let Results { losses, metrics } = results;
        let count = losses.len();
        let mut sums: Vec<_> = losses.into_values().chain(metrics.into_values()).collect();
        let (of_each, without) = (self.gradients.take_squared_norm_of_each(), sums.len());
        sums.extend(of_each.iter().flatten().cloned());
        let (squared_norms, mut losses) = squares.read_with(&sums);
        let read = losses.split_off(without);
        let squared_norm_of_each = of_each.map(|_| read.iter().flatten().sum::<f64>() / (loss_scale * loss_scale));
        let metrics = losses.split_off(count);
        Numbers { squared_norms, squared_norm_of_each, losses, metrics }
    }

    /// Returns the number of times that this stage has added up the gradient sums of all data-parallel replicas in the
    /// current step, and resets it to 0.
    pub(super) fn take_reductions(&mut self) -> usize {
        std::mem::take(&mut self.reductions)
    }

    /// Returns the bytes of the last micro-batch's gradients that were allocated in addition to the gradient sums.
    /// Excludes gradients that layers add directly to the sums during the backward pass.
    pub(super) fn beside(&self) -> u64 {
        self.gradients.beside()
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.gradients.ledger()
    }

    /// Returns the step's completed gradient sums, and leaves empty sums for the next step.
    pub(super) fn take(&mut self) -> GradientsParams {
        self.gradients.take()
    }

    /// Saves a copy of the gradient sums before a speculative optimizer step, so that the step can be rolled back.
    pub(super) fn keep<M: Module>(&mut self, module: &M) {
        self.kept = Some(self.gradients.copy(module));
    }

    /// Discards the copy of the gradient sums, because the step is committed and can no longer be rolled back.
    pub(super) fn drop_kept(&mut self) {
        self.kept = None;
    }

    /// Restores the gradient sums from the copy that was saved before the rolled-back step. Does nothing without a
    /// copy.
    pub(super) fn put_back(&mut self) {
        if let Some(kept) = self.kept.take() {
            self.gradients.put_back(kept);
        }
    }
}
