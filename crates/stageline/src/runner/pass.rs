//! The description of a pass over a batch, which is the same for all stages of a replica.

use std::sync::Arc;

use crate::model::loss_weight::Weight;
use crate::model::micro_batches::Weights;
use crate::transfer::order::Turns;
use stageline_nn::autograd::recompute::Recompute;

/// The kind of a pass over a batch, with its context.
#[derive(Clone)]
pub(crate) enum Pass {
    /// A training pass: forwards, backwards and a flush.
    Train(Arc<Context>),
    /// An inspection: the forwards and backwards of a step again, to find the first non-finite result. No stage steps.
    Inspect(Arc<Context>),
    /// An evaluation: forwards only, without an autodiff graph.
    Evaluate(Arc<Context>),
}

/// The context of a pass: the facts about a batch that all stages of a replica need.
pub(crate) struct Context {
    /// The number of the step, counted from 0.
    pub(crate) step: usize,
    /// The loss weights and samples of the replica's micro-batches.
    pub(crate) weights: Weights,
    /// The divisor of the loss, term by term: the total weight of the whole batch, over all replicas.
    pub(crate) divisor: Weight,
    /// The factor by which the loss is multiplied after the division.
    pub(crate) loss_scale: f64,
    /// The part of its forward that each stage recomputes in its backward.
    pub(crate) recompute: Arc<[Recompute]>,
    /// The turns in which transfers between GPUs are issued.
    pub(crate) turns: Arc<Turns>,
}

impl Pass {
    /// Returns the context of the pass, whatever its kind.
    pub(crate) fn context(&self) -> &Arc<Context> {
        let (Self::Train(context) | Self::Inspect(context) | Self::Evaluate(context)) = self;
        context
    }
}
