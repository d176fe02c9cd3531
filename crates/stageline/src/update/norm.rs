//! The norm of the gradients.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

use crate::nn::params::read_many::read;

/// The sum of squares of every parameter's gradient, on the device, in the order of the module's parameters.
///
/// Parameter by parameter, so that their sum in layer order does not depend on where the model is cut.
#[derive(Default)]
pub(crate) struct SquaredNorms(Vec<Option<Tensor<1>>>);

impl SquaredNorms {
    pub(crate) fn of<M: Module>(module: &M, gradients: &GradientsParams) -> Self {
        let mut squares = Squares { gradients, seen: HashSet::new(), sums: Vec::new() };
        module.visit(&mut squares);
        Self(squares.sums)
    }

    /// They, 0 where there is no gradient; and the numbers of other tensors.
    pub(crate) fn read_with(&self, others: &[Tensor<1>]) -> (Vec<f64>, Vec<Vec<f64>>) {
        let mut numbers = read(self.0.iter().flatten().chain(others));
        let squares =
            self.0.iter().map(|sum| sum.as_ref().and_then(|_| numbers.next()).map_or(0.0, |square| square[0]));
        (squares.collect(), numbers.collect())
    }

    pub(crate) fn are_finite(&self) -> bool {
        self.read_with(&[]).0.into_iter().all(f64::is_finite)
    }
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
    #[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
    if let Some(sum) = crate::nn::kernels::sum_of_squares(&gradient) {
        return sum;
    }
    gradient.cast(FloatDType::F64).square().sum()
}
