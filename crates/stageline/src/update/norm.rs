//! The squared norm of every parameter's gradient, which the global norm is computed from.

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use stageline_nn::kernels::sum_of_squares;
use stageline_nn::params::{read_many, visit_floats};

/// The squared norm of each parameter's gradient in a stage, in f64 on the stage's device, in the order of the module's
/// parameters. Parameters without a gradient are left out.
///
/// The global norm is the square root of the sum of these squared norms, which are added in layer order. So it does not
/// depend on how the layers are divided into stages.
#[derive(Default)]
pub(crate) struct SquaredNorms(Vec<(ParamId, Tensor<1>)>);

impl SquaredNorms {
    pub(crate) fn of<M: Module>(module: &M, gradients: &GradientsParams) -> Self {
        let (mut seen, mut squares) = (HashSet::new(), Vec::new());
        visit_floats(module, |param| {
            // The gradient of a parameter that a module uses twice is squared once.
            let gradient = param.gradient(gradients).filter(|_| seen.insert(param.id()));
            squares.extend(gradient.map(|gradient| (param.id(), sum_of_squares(gradient.unranked()))));
        });
        Self(squares)
    }

    /// Reads all squared norms and the tensors `others` from the device in one transfer, and returns both.
    pub(crate) fn read_with(&self, others: &[Tensor<1>]) -> (Vec<(ParamId, f64)>, Vec<Vec<f64>>) {
        let mut numbers = read_many(self.0.iter().map(|(_, sum)| sum).chain(others));
        let squares = self.0.iter().zip(numbers.by_ref()).map(|((id, _), square)| (*id, square[0])).collect();
        (squares, numbers.collect())
    }

    pub(crate) fn are_finite(&self) -> bool {
        self.read_with(&[]).0.into_iter().all(|(_, square)| square.is_finite())
    }
}
