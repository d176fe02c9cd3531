//! The description of one pass (a step, inspection, evaluation or inference): its kind ([`Pass`]), and its step number,
//! loss weights and loss scale ([`Context`]). All stages of a replica get the same description.

use std::sync::Arc;

use crate::model::loss_weight::Weight;
use crate::model::micro_batches::Weights;
use crate::transfer::order::Turns;
use stageline_nn::Recompute;

/// The kind of work that the pipeline does on a batch: a training step, an inspection (a search for non-finite
/// results), an evaluation or inference. Each value contains the step number, loss weights and loss scale.
#[derive(Clone)]
pub(crate) enum Pass {
    /// Run a training step: forward and backward passes of all micro-batches, and then the optimizer step.
    Train(Arc<Context>),
    /// Run the forward and backward passes of a step with NaN or infinity again, to find its first non-finite result.
    /// No stage steps its optimizer.
    Inspect(Arc<Context>),
    /// Run an evaluation: forward passes and losses only, without an autodiff graph.
    Evaluate(Arc<Context>),
    /// Run inference: forward passes only, and the last stage sends its outputs to the caller.
    Infer(Arc<Context>),
}

/// The values that all stages of a replica need in a step, evaluation or inference, such as the step number, the loss
/// weights, the loss scale, and the order of transfers between GPUs.
pub(crate) struct Context {
    /// Zero-based number of the current training step. In an evaluation or inference pass, the number of training steps
    /// made so far.
    pub(crate) step: usize,
    /// The loss weights of the replica's micro-batches, and their samples' indices in the whole batch.
    pub(crate) weights: Weights,
    /// The divisor of the summed loss, with one value for each loss term: usually the whole batch's total loss weight,
    /// over all replicas.
    pub(crate) divisor: Weight,
    /// The loss scale: the loss is multiplied by it before the backward pass, so that small gradients do not underflow.
    pub(crate) loss_scale: f64,
    /// The part of each stage's forward pass that its backward pass recomputes instead of retaining its activations
    /// (activation checkpointing).
    pub(crate) recompute: Arc<[Recompute]>,
    /// Whether the stages measure the squared norm of every micro-batch's gradients in this step, to estimate the
    /// gradient noise. True only in training steps that the settings select.
    pub(crate) measures_noise: bool,
    /// The order in which the replica's workers issue transfers between GPUs, so that NCCL does not deadlock.
    pub(crate) turns: Arc<Turns>,
}

impl Pass {
    pub(crate) fn context(&self) -> &Arc<Context> {
        let (Self::Train(context) | Self::Inspect(context) | Self::Evaluate(context) | Self::Infer(context)) = self;
        context
    }
}
