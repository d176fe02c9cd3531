//! The running sum of a stage's gradients over the micro-batches of a step.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};

use crate::clip::Scaling;
use crate::ledger::Ledger;
use crate::norm::squared_norms;
use crate::weight::Weight;

/// Adds the gradients of every micro-batch in ascending order, in whichever order they come.
///
/// The order of the additions is part of the result: it makes the sum the same bits under every schedule.
pub(crate) struct GradientSum<M> {
    sum: GradientsAccumulator<M>,
    early: BTreeMap<usize, (GradientsParams, Weight)>,
    ledger: Ledger,
}

impl<M: Module> GradientSum<M> {
    pub(crate) fn new() -> Self {
        Self { sum: GradientsAccumulator::new(), early: BTreeMap::new(), ledger: Ledger::default() }
    }

    /// Takes the gradients of one micro-batch, and the loss weight that came with it.
    pub(crate) fn add(&mut self, module: &M, micro_batch: usize, gradients: GradientsParams, weight: Weight) {
        self.early.insert(micro_batch, (gradients, weight));
        while let Some((gradients, weight)) = self.early.remove(&self.ledger.backwards) {
            self.sum.accumulate(module, gradients);
            self.ledger.weight.add(&weight);
            self.ledger.backwards += 1;
        }
    }

    /// How many micro-batches are in the sum, and their weight.
    pub(crate) fn ledger(&self) -> Ledger {
        self.ledger.clone()
    }

    /// Divides the sum by the scale of the loss.
    pub(crate) fn unscale(&mut self, module: &M, scale: f64) {
        if scale != 1.0 {
            let gradients = Scaling::By(1.0 / scale).apply(module, self.sum.grads());
            self.sum.accumulate(module, gradients);
        }
    }

    /// The squared norm of every parameter's sum, in the order of the module's parameters.
    pub(crate) fn squared_norms(&mut self, module: &M) -> Vec<f64> {
        let gradients = self.sum.grads();
        let squares = squared_norms(module, &gradients);
        self.sum.accumulate(module, gradients);
        squares
    }

    /// The sum, leaving an empty one.
    pub(crate) fn take(&mut self) -> GradientsParams {
        std::mem::replace(self, Self::new()).sum.grads()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::Param;
    use burn::tensor::{Device, Tensor};

    /// (a + b) + c and (c + b) + a differ in f32 for these, so the order of additions shows.
    #[test]
    fn the_sum_does_not_depend_on_the_order_of_arrival() {
        let device = Device::flex().autodiff();
        let parameter = Param::from_tensor(Tensor::<1>::zeros([1], &device));
        let values = [1.0e8_f32, 1.0, -1.0e8];
        let total = |order: [usize; 3]| {
            let mut sum = GradientSum::new();
            for micro_batch in order {
                let mut gradients = GradientsParams::new();
                let value = Tensor::<1>::from_floats([values[micro_batch]], &device).inner();
                gradients.register(parameter.id, value);
                sum.add(&parameter, micro_batch, gradients, [1.0, 2.0, 4.0][micro_batch].into());
            }
            assert_eq!(sum.ledger(), Ledger { backwards: 3, weight: 7.0.into() });
            sum.take().remove::<1>(parameter.id).unwrap().into_scalar::<f32>()
        };
        let ascending = (values[0] + values[1]) + values[2];
        assert_ne!(ascending, (values[2] + values[0]) + values[1]);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            assert_eq!(total(order).to_bits(), ascending.to_bits(), "{order:?}");
        }
    }
}
