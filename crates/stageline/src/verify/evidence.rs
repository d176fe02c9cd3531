//! The gradients from which a verification finds the fault of a wrong training: those of single micro-batches
//! ([`Parts`]), and those that each known fault would give ([`Predictions`]). A verification compares a training with
//! the same training on one device.

use super::flat::Flat;
use crate::model::loss_weight::Weight;

/// The losses and gradients of the micro-batches of one batch, where each micro-batch was run alone.
pub(super) struct Parts {
    /// For each micro-batch of the batch, a pair: the sum of each loss term over the micro-batch's targets, and the
    /// micro-batch's loss weight.
    pub(super) losses: Vec<(Vec<f64>, Weight)>,
    /// The sum of the gradients of all micro-batches of the batch, divided by the loss weight of the whole batch.
    pub(super) sum: Flat,
    /// For each micro-batch of the batch, the indices of the parameters whose gradient is zero in every element.
    pub(super) zero_gradients: Vec<Vec<usize>>,
}

/// The gradients that a step would have with each of several known faults of gradient accumulation or clipping.
pub(super) struct Predictions {
    /// The gradients of a step if the training averages the mean gradients of its micro-batches.
    pub(super) mean: Flat,
    /// The gradients of a step if the training clips the gradients of each micro-batch alone and then sums them.
    pub(super) clipped_each: Flat,
    /// The gradients of a step if the training sums the micro-batches' gradients and clips the sum after each addition.
    pub(super) clipped_running: Flat,
    /// The gradients of a step if the training clips the mean gradients of each micro-batch alone and then averages
    /// them.
    pub(super) clipped_means: Flat,
    /// The gradients of a step if the training averages the mean gradients of the micro-batches and clips the running
    /// mean after each addition.
    pub(super) clipped_running_means: Flat,
}
