//! The norm of the gradients.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

/// The sum of squares of every parameter's gradient, in f64, in the order of the module's parameters; 0 where there is none.
///
/// Parameter by parameter, so that their sum in layer order does not depend on where the model is cut.
pub(crate) fn squared_norms<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<f64> {
    let mut squares = Squares { gradients, seen: HashSet::new(), sums: Vec::new() };
    module.visit(&mut squares);
    let there: Vec<_> = squares.sums.iter().flatten().cloned().collect();
    if there.is_empty() {
        return vec![0.0; squares.sums.len()];
    }
    // One read for all of them: it waits for the device.
    let read = Tensor::cat(there, 0).into_data();
    let mut read = read.iter::<f64>();
    squares.sums.iter().map(|sum| sum.as_ref().and_then(|_| read.next()).unwrap_or(0.0)).collect()
}

struct Squares<'a> {
    gradients: &'a GradientsParams,
    /// A parameter that a module uses twice counts once.
    seen: HashSet<ParamId>,
    /// On the device, of each parameter that has a gradient.
    sums: Vec<Option<Tensor<1>>>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.seen.insert(param.id) {
            self.sums.push(self.gradients.get::<D>(param.id).map(sum_of_squares));
        }
    }
}

/// In f64, `[1]`.
fn sum_of_squares<const D: usize>(gradient: Tensor<D>) -> Tensor<1> {
    #[cfg(any(feature = "flex", feature = "remote"))]
    if let Some(sum) = crate::nn::kernels::sum_of_squares(&gradient) {
        return sum;
    }
    gradient.cast(FloatDType::F64).square().sum()
}
