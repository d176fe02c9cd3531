//! Gradients, shown instead of being used.

use burn::module::Module;
use burn::optim::GradientsParams;

use crate::clip::Scaling;
use crate::named;
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
    let summed = named::gradients(module, &gradients);
    let applied = named::gradients(module, &scaling.apply(module, gradients));
    let own = summed.into_iter().zip(applied).filter(|(summed, _)| !ties.holds(summed.id));
    own.map(|(summed, applied)| {
        let zeros = || vec![0.0; summed.elements];
        let (path, summed) = (summed.path, summed.gradient.unwrap_or_else(zeros));
        ParameterGradient::new(stage, path, summed, applied.gradient.unwrap_or_else(zeros))
    })
    .collect()
}
