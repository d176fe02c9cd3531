//! The gradient sums of a stage ([`StageSums`]): adds the gradients of micro-batches, reduces the sums over replicas,
//! and reads their norms ([`Numbers`]).

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

/// The gradient sums of a stage in the current step, and their copy for a rollback.
pub(super) struct StageSums {
    gradients: GradientSum,
    /// A copy of the gradient sums of a speculative step, which is made before the common verdict (step or skip);
    /// `None` at other times.
    kept: Option<GradientsParams>,
    /// The number of times that this stage has added up the gradient sums of all replicas in the current step.
    reductions: usize,
}

/// The numbers that a stage reads from its device at the end of a pass over a batch, all in one transfer. The fields
/// have the same meaning as in the stage's `Outcome`.
pub(super) struct Numbers {
    pub(super) squared_norms: Vec<(ParamId, f64)>,
    pub(super) squared_norm_of_each: Option<f64>,
    pub(super) losses: Vec<Vec<f64>>,
    pub(super) metrics: Vec<Vec<f64>>,
}

impl StageSums {
    /// Creates empty sums. Gradients are added in the float type `dtype`, or in their own type if it is `None`. The
    /// gradients of every `per_group` consecutive micro-batches are summed as one group.
    pub(super) fn new(dtype: Option<FloatDType>, per_group: usize) -> Self {
        Self { gradients: GradientSum::new(dtype, per_group), kept: None, reductions: 0 }
    }

    /// Adds the gradients of one micro-batch to the sums, and computes its deferred weight gradients.
    ///
    /// Returns the ids of the parameters whose gradient a layer has added to the sums too early, during the backward
    /// pass. Each of them has another gradient in this micro-batch, and the two should have been added to each other
    /// first.
    pub(super) fn add<M: Module>(
        &mut self,
        module: &M,
        micro_batch: usize,
        gradients: MicroBatchGradients,
    ) -> HashSet<ParamId> {
        self.gradients.add(module, micro_batch, gradients)
    }

    /// Runs `backward`, an unsplit backward pass of `micro_batch`, during which layers add the gradients of the
    /// parameters `ids` to the sums where they can. Returns the result of the backward pass, and the gradients of
    /// layers that [`add`](Self::add) must still add.
    pub(super) fn adding_at_once<R>(
        &mut self,
        micro_batch: usize,
        ids: HashSet<ParamId>,
        backward: impl FnOnce() -> R,
    ) -> (R, GradientsParams) {
        self.gradients.adding_at_once(micro_batch, ids, backward)
    }

    /// Makes the sums measure the squared norm of every micro-batch's gradients, until the end of the step.
    pub(super) fn measure_each(&mut self) {
        self.gradients.measure_each();
    }

    /// Completes the gradient sums of a step. Replica 0 adds up the sums of all replicas; the other replicas send their
    /// sums to replica 0.
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

    /// Reads the numbers of a pass over a batch from the stage's device. They are the squared norms `squares`, the
    /// losses and metrics in `results`, and the squared norms of single micro-batches if the step measures them.
    /// `loss_scale` is the loss scale of the pass.
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

    /// Returns the number of times that this stage has added up the gradient sums of all replicas in the current step.
    /// Sets the number to 0 for the next step.
    pub(super) fn take_reductions(&mut self) -> usize {
        std::mem::take(&mut self.reductions)
    }

    /// Returns the bytes of the last added micro-batch's gradients that were in memory at the same time, beside the
    /// sums. Gradients that layers add to the sums one by one do not count.
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

    /// Keeps a copy of the gradient sums before a speculative optimizer step.
    pub(super) fn keep<M: Module>(&mut self, module: &M) {
        self.kept = Some(self.gradients.copy(module));
    }

    /// Discards the copy of the gradient sums, because their step is committed.
    pub(super) fn drop_kept(&mut self) {
        self.kept = None;
    }

    /// Restores the gradient sums of the step that is rolled back, if a copy was kept.
    pub(super) fn put_back(&mut self) {
        if let Some(kept) = self.kept.take() {
            self.gradients.put_back(kept);
        }
    }
}
