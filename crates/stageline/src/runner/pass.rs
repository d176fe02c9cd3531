//! The description of a pass over a batch: its kind ([`Pass`]), and its step number, loss weights and loss scale
//! ([`Context`]). It is the same for all stages of a replica.

use std::sync::Arc;

use crate::model::loss_weight::Weight;
use crate::model::micro_batches::Weights;
use crate::transfer::order::Turns;
use stageline_nn::Recompute;

/// The kind of a pass over a batch: a training step, an inspection (a search for non-finite results), an evaluation or
/// an inference. The value contains the step number, loss weights and loss scale of the pass.
#[derive(Clone)]
pub(crate) enum Pass {
    /// A training pass over a batch: forward and backward passes of all micro-batches and then the flush, when the
    /// optimizers step.
    Train(Arc<Context>),
    /// An inspection, which runs the forward and backward passes of a non-finite step again to find its first
    /// non-finite result. No stage steps its optimizer.
    Inspect(Arc<Context>),
    /// An evaluation: forward passes and losses only, without an autodiff graph.
    Evaluate(Arc<Context>),
    /// An inference: forward passes only, whose outputs the last stage sends to the caller.
    Infer(Arc<Context>),
}

/// The values that all stages of a replica need in a pass over a batch. They include the step number, the loss weights,
/// the loss scale, and the order of transfers between GPUs.
pub(crate) struct Context {
    /// The number of the current training step, counted from 0; for an evaluation or an inference, the number of steps
    /// before it.
    pub(crate) step: usize,
    /// The loss weights of the replica's micro-batches, and the indices of their samples in the whole batch.
    pub(crate) weights: Weights,
    /// The divisor of the loss, one number for each loss term: usually the total loss weight of the whole batch, over
    /// all replicas.
    pub(crate) divisor: Weight,
    /// The loss scale: the factor on the loss after the division of the loss by its total weight. It keeps small
    /// gradients from underflowing.
    pub(crate) loss_scale: f64,
    /// For each stage, the part of the forward pass that its backward pass recomputes.
    pub(crate) recompute: Arc<[Recompute]>,
    /// Whether the stages measure the squared norm of every micro-batch's gradients, for an estimate of the gradient
    /// noise. True only in training steps that the settings select.
    pub(crate) measures_noise: bool,
    /// The order of the replica's transfers between GPUs during the pass, which its workers follow so that NCCL cannot
    /// deadlock.
    pub(crate) turns: Arc<Turns>,
}

impl Pass {
    pub(crate) fn context(&self) -> &Arc<Context> {
        let (Self::Train(context) | Self::Inspect(context) | Self::Evaluate(context) | Self::Infer(context)) = self;
        context
    }
}
