//! The norm of the gradients.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

use crate::device::is_host;

/// The sum of squares of every parameter's gradient, in f64, in the order of the module's parameters; 0 where there is none.
///
/// Parameter by parameter, so that their sum in layer order does not depend on where the model is cut.
pub(crate) fn squared_norms<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<f64> {
    let mut squares = Squares { gradients, seen: HashSet::new(), each: Vec::new() };
    module.visit(&mut squares);
    squares.each
}

struct Squares<'a> {
    gradients: &'a GradientsParams,
    /// A parameter that a module uses twice counts once.
    seen: HashSet<ParamId>,
    each: Vec<f64>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.seen.insert(param.id) {
            self.each.push(self.gradients.get::<D>(param.id).map_or(0.0, sum_of_squares));
        }
    }
}

fn sum_of_squares<const D: usize>(gradient: Tensor<D>) -> f64 {
    if is_host(&gradient.device()) {
        // In one order, whatever the number of cores: the CPU backend adds in parallel.
        let data = gradient.into_data();
        return match data.as_slice::<f32>() {
            Ok(values) => values.iter().map(|&value| f64::from(value) * f64::from(value)).sum(),
            Err(_) => data.iter::<f64>().map(|value| value * value).sum(),
        };
    }
    gradient.cast(FloatDType::F64).square().sum().into_scalar::<f64>()
}
