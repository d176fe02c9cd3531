//! The squared norm of every parameter's gradient, from which the global norm is computed.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use stageline_nn::kernels::sum_of_squares::sum_of_squares;
use stageline_nn::params::read_many::read;

/// The squared norm of each parameter's gradient in a stage's module, in f64 on the stage's device, in the order of the
/// module's parameters.
///
/// The sums stay separate for each parameter, so that the global norm, added up in layer order, does not depend on the
/// split points.
#[derive(Default)]
pub(crate) struct SquaredNorms(Vec<Option<Tensor<1>>>);

impl SquaredNorms {
    pub(crate) fn of<M: Module>(module: &M, gradients: &GradientsParams) -> Self {
        let mut squares = Squares { gradients, seen: HashSet::new(), sums: Vec::new() };
        module.visit(&mut squares);
        Self(squares.sums)
    }

    /// Reads the squared norm of every parameter's gradient from the device, together with the values of the tensors
    /// `others` in the same transfer, and returns both. A parameter without a gradient has the norm 0.
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
    /// The ids of the parameters visited so far, so that the gradient of a parameter that a module uses twice is
    /// squared once.
    seen: HashSet<ParamId>,
    /// The sum of squares of each parameter's gradient, on the device; `None` if the parameter has no gradient.
    sums: Vec<Option<Tensor<1>>>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.seen.insert(param.id) {
            self.sums.push(self.gradients.get::<D>(param.id).map(sum_of_squares));
        }
    }
}
