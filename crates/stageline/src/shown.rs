//! Gradients, shown instead of being used.

use std::collections::HashMap;

use burn::module::Module;
use burn::optim::GradientsParams;

use crate::clip::Scaling;
use crate::named::{self, Trained};
use crate::tie::Ties;

/// The gradient of one parameter for one batch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ParameterGradient {
    /// The stage that trains it.
    pub stage: usize,
    /// Where it is in the stage's module, such as `0.linear.weight`.
    pub path: String,
    /// Added up over the micro-batches, its elements in the order of memory.
    pub summed: Vec<f32>,
    /// The same as the optimizer would get it: clipped.
    pub applied: Vec<f32>,
}

impl ParameterGradient {
    /// For a loop of one's own; a pipeline gives them by [`Pipeline::gradients`](crate::Pipeline::gradients).
    pub fn new(stage: usize, path: impl Into<String>, summed: Vec<f32>, applied: Vec<f32>) -> Self {
        Self { stage, path: path.into(), summed, applied }
    }
}

/// Those of the parameters that a stage trains, in their order; zeros where there is none.
pub(crate) fn show<M: Module>(
    stage: usize,
    module: &M,
    gradients: GradientsParams,
    scaling: Scaling,
    ties: &Ties,
) -> Vec<ParameterGradient> {
    let by_id = |gradients: &GradientsParams| {
        let named = named::gradients(module, gradients).into_iter();
        named.map(|named| (named.id, named.gradient)).collect::<HashMap<_, _>>()
    };
    let mut summed = by_id(&gradients);
    let mut applied = by_id(&scaling.apply(module, gradients));
    let own = named::trained(module).into_iter().filter(|parameter| !ties.holds(parameter.id));
    own.map(|Trained { id, path, elements }| {
        let zeros = || vec![0.0; elements];
        let (summed, applied) = (summed.remove(&id), applied.remove(&id));
        ParameterGradient::new(stage, path, summed.unwrap_or_else(zeros), applied.unwrap_or_else(zeros))
    })
    .collect()
}
