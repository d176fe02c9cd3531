//! What all workers are told of a batch.

use std::sync::Arc;

use crate::model::loss_weight::Weight;
use crate::model::micro_batches::Weights;
use crate::transfer::order::Turns;
use stageline_nn::autograd::recompute::Recompute;

/// What the workers do with a batch.
#[derive(Clone)]
pub(crate) enum Pass {
    /// Forwards, backwards and a flush.
    Train(Arc<Context>),
    /// The same without the flush, looking for the first thing that is not finite.
    Inspect(Arc<Context>),
    /// Forwards only, without a graph.
    Evaluate(Arc<Context>),
}

/// What all stages know of a batch.
pub(crate) struct Context {
    pub(crate) step: usize,
    pub(crate) weights: Weights,
    /// What the loss is divided by: their total,
    pub(crate) divisor: Weight,
    /// and then multiplied by.
    pub(crate) loss_scale: f64,
    /// What each stage computes again in its backwards.
    pub(crate) recompute: Arc<[Recompute]>,
    /// When transfers are issued.
    pub(crate) turns: Arc<Turns>,
}

impl Pass {
    pub(crate) fn context(&self) -> &Arc<Context> {
        let (Self::Train(context) | Self::Inspect(context) | Self::Evaluate(context)) = self;
        context
    }
}
