//! The gradients that help a verification to find the fault of a wrong run. They are the gradients of single
//! micro-batches ([`Parts`]), and the gradients that each known fault would give ([`Predictions`]). A verification
//! compares a training run with the same training on one device.

use super::flat::Flat;
use crate::model::loss_weight::Weight;

/// The losses and gradients of the micro-batches of one batch, each of which was run alone.
pub(super) struct Parts {
    /// For each micro-batch, the sum of each loss term over its targets, and its loss weight.
    pub(super) losses: Vec<(Vec<f64>, Weight)>,
    /// The sum of the gradients of all micro-batches, divided by the loss weight of the whole batch.
    pub(super) sum: Flat,
    /// For each micro-batch, the indices of the parameters whose gradient is zero in every element.
    pub(super) zero_gradients: Vec<Vec<usize>>,
}

/// The gradients that a step would have with each of several known faults of gradient accumulation or clipping. A
/// verification compares them with the gradients of the verified run.
pub(super) struct Predictions {
    /// The gradients that one known fault would give: the mean gradients of the micro-batches are averaged, whatever
    /// their numbers of targets.
    pub(super) mean: Flat,
    /// The gradients that one known fault would give: the gradients of each micro-batch are clipped before they are
    /// summed.
    pub(super) clipped_each: Flat,
    /// The gradients that one known fault would give: the sum of the micro-batches' gradients is clipped after each
    /// addition.
    pub(super) clipped_running: Flat,
    /// The gradients that one known fault would give: the mean gradient of each micro-batch is clipped, and the results
    /// are averaged.
    pub(super) clipped_means: Flat,
    /// The gradients that one known fault would give: the mean gradients of the micro-batches are averaged, and their
    /// partial sum is clipped after each addition.
    pub(super) clipped_running_means: Flat,
}
