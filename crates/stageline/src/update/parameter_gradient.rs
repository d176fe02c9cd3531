//! Gradients of single parameters, which are returned to the caller instead of being applied by an optimizer.

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use crate::update::clip::Scaling;
use stageline_nn::params::named_gradients;

/// The gradient of one parameter for one batch, before and after clipping, as f32 values on the host.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ParameterGradient {
    /// Zero-based index of the stage that trains the parameter of this gradient.
    pub stage: usize,
    /// The path of the parameter in the stage's module, such as `0.linear.weight`.
    pub path: String,
    /// The parameter's gradient, summed over the micro-batches, before clipping. It has one value for each element of
    /// the parameter, in row-major order.
    pub summed: Vec<f32>,
    /// The parameter's gradient as the optimizer would receive it: summed over the micro-batches, and clipped as
    /// configured. It has one value for each element of the parameter, in row-major order.
    pub applied: Vec<f32>,
}

impl ParameterGradient {
    /// Creates the record of one parameter's gradient before clipping (`summed`) and after it (`applied`), each with
    /// one value for each element of the parameter. `stage` and `path` identify the parameter. A pipeline creates such
    /// records in [`Pipeline::gradients`](crate::Pipeline::gradients); a custom training loop creates its own.
    pub fn new(stage: usize, path: impl Into<String>, summed: Vec<f32>, applied: Vec<f32>) -> Self {
        Self { stage, path: path.into(), summed, applied }
    }
}

/// Returns the gradients of the parameters that a stage trains, before and after clipping by `scaling`, in the module's
/// order. If the loss does not depend on a parameter, its gradient is zero. Tied parameters that another stage trains
/// are left out; `is_held` returns true for them.
pub(crate) fn show<M: Module>(
    stage: usize,
    module: &M,
    gradients: GradientsParams,
    scaling: Scaling,
    is_held: impl Fn(&ParamId) -> bool,
) -> Vec<ParameterGradient> {
    let summed = named_gradients(module, &gradients);
    let applied = named_gradients(module, &scaling.apply(module, gradients));
    let own = summed.into_iter().zip(applied).filter(|(summed, _)| !is_held(&summed.id));
    own.map(|(summed, applied)| {
        let zeros = || vec![0.0; summed.elements];
        let (path, summed) = (summed.path, summed.gradient.unwrap_or_else(zeros));
        ParameterGradient::new(stage, path, summed, applied.gradient.unwrap_or_else(zeros))
    })
    .collect()
}
