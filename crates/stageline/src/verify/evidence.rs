//! The gradients that help a verification to find the bug in a wrong training run: the gradients of single
//! micro-batches ([`Parts`]), and the gradients that each known bug would give ([`Predictions`]). A verification
//! compares a training run with the same training on one device.

use super::flat::Flat;
use crate::model::loss_weight::Weight;

/// The losses and gradients of a batch's micro-batches, each run alone.
pub(super) struct Parts {
    /// For each micro-batch, the sum of each loss term over the micro-batch's targets, and the micro-batch's loss
    /// weight.
    pub(super) losses: Vec<(Vec<f64>, Weight)>,
    /// The sum of the gradients of all micro-batches, divided by the loss weight of the whole batch.
    pub(super) sum: Flat,
    /// For each micro-batch, the indices of the parameters whose gradient is zero in every element.
    pub(super) zero_gradients: Vec<Vec<usize>>,
}

/// The gradients that a step would have with each of several known bugs in gradient accumulation or clipping. A
/// verification compares them with the gradients of the verified run.
pub(super) struct Predictions {
    /// The gradients if a training loop wrongly averages the micro-batches' mean gradients without weighting them by
    /// their numbers of targets.
    pub(super) mean: Flat,
    /// The gradients if a training loop wrongly clips each micro-batch's gradients before it sums them.
    pub(super) clipped_each: Flat,
    /// The gradients if a training loop wrongly clips the running sum of the micro-batches' gradients after each
    /// addition.
    pub(super) clipped_running: Flat,
    /// The gradients if a training loop wrongly clips each micro-batch's mean gradients, and averages the results.
    pub(super) clipped_means: Flat,
    /// The gradients if a training loop wrongly averages the micro-batches' mean gradients, and clips the partial sum
    /// after each addition.
    pub(super) clipped_running_means: Flat,
}
