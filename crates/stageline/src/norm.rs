//! The norm of the gradients.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

/// The sum of squares of every parameter's gradient, in f64, in the order of the module's parameters; 0 where there is none.
///
/// Parameter by parameter, so that their sum in layer order does not depend on where the model is cut.
pub(crate) fn squared_norms<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<f64> {
    let mut squares = Squares { gradients, seen: HashSet::new(), each: Vec::new(), on_device: Vec::new() };
    module.visit(&mut squares);
    let Squares { mut each, on_device, .. } = squares;
    if !on_device.is_empty() {
        // One read for all of them: it waits for the device.
        let (places, sums): (Vec<_>, Vec<_>) = on_device.into_iter().unzip();
        for (place, sum) in places.into_iter().zip(Tensor::cat(sums, 0).into_data().iter::<f64>()) {
            each[place] = sum;
        }
    }
    each
}

struct Squares<'a> {
    gradients: &'a GradientsParams,
    /// A parameter that a module uses twice counts once.
    seen: HashSet<ParamId>,
    each: Vec<f64>,
    /// Sums that are still on a device, by their place among all.
    on_device: Vec<(usize, Tensor<1>)>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        match self.gradients.get::<D>(param.id) {
            Some(gradient) => {
                self.on_device.push((self.each.len(), sum_of_squares(gradient)));
                self.each.push(0.0);
            }
            None => self.each.push(0.0),
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
