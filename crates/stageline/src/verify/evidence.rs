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

/// The gradients that a step would have under several wrong alternatives, which are known faults of gradient
/// accumulation or clipping. The gradients of the verified training are compared with each of them.
pub(super) struct Predictions {
    /// A wrong alternative that is compared with the verified training: the gradients of a step if each micro-batch's
    /// mean gradient counts equally, whatever its number of targets.
    pub(super) mean: Flat,
    /// A wrong alternative that is compared with the verified training: the gradients of a step if the gradients of
    /// each micro-batch are clipped alone and then summed.
    pub(super) clipped_each: Flat,
    /// A wrong alternative that is compared with the verified training: the gradients of a step if the micro-batches'
    /// gradients are summed and the sum is clipped after each addition.
    pub(super) clipped_running: Flat,
    /// A wrong alternative that is compared with the verified training: the gradients of a step if each micro-batch's
    /// mean gradient is clipped alone, and all count equally, whatever their numbers of targets.
    pub(super) clipped_means: Flat,
    /// A wrong alternative that is compared with the verified training: the gradients of a step if each micro-batch's
    /// mean gradient counts equally, whatever its number of targets, and their partial sum is clipped after each
    /// addition.
    pub(super) clipped_running_means: Flat,
}
