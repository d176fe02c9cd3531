//! Starts a backward pass from a given output gradient (a vector-Jacobian product).

use std::marker::PhantomData;

use burn::backend::Backend;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

use crate::engine::{Engine, of_their_backend, recorded};

/// Returns a scalar whose gradient with respect to `output` is `gradient`, bit for bit. A backward pass from this
/// scalar computes a vector-Jacobian product, like PyTorch's `output.backward(gradient)`. Returns `None` if `output` is
/// not in an autodiff graph.
pub fn root<const D: usize>(output: Tensor<D>, gradient: Tensor<D>) -> Option<Tensor<1>> {
    if !output.is_tracked() {
        return None;
    }
    of_their_backend!(handed_in, output.clone(), gradient.clone())
        // Fallback for other backends and for burn's own gradient checkpointing: `sum(output * gradient)` has the
        // gradient `gradient` with respect to `output`, but costs an extra product. Autodiff does not track `gradient`,
        // so it is a constant in the graph.
        .or_else(|| Some((output * gradient).sum()))
}

/// An autodiff operation at the end of a graph that stores a gradient given by the caller. Its backward pass computes
/// nothing and passes this gradient on to the preceding operation.
#[derive(Debug)]
struct HandIn;

impl<B: Backend> Backward<B, 1> for HandIn {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<FloatTensor<B>, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, ops.state);
        }
    }
}

/// Appends an operation ([`HandIn`]) to the autodiff graph of `output`, whose backward pass passes the given `gradient`
/// on to `output`. Returns the operation's output, a scalar from which a backward pass can start. Returns `None` if
/// `output` is not a tensor of the backend `B`, or if burn's own gradient checkpointing is on.
fn handed_in<B: Engine, const D: usize>(
    _: PhantomData<B>,
    output: Tensor<D>,
    gradient: Tensor<D>,
) -> Option<Tensor<1>> {
    let (_, node) = B::tracked(output)?.into_parts();
    let nothing = B::plain(Tensor::<1>::zeros([1], &gradient.device()))?;
    Some(recorded::<B, _, 1, 1>(HandIn, [node], B::plain(gradient)?, nothing))
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;
    use burn::tensor::Device;

    /// Tests a backward pass that starts from given gradients of two tensors: a tensor and its square. The gradient of
    /// the input must have the same bits as in a backward pass from a sum. The sum adds both tensors, each multiplied
    /// by its given gradient.
    #[test]
    fn a_seeded_backward_gives_the_bits_of_a_sum_of_products() {
        let device = Device::flex();
        let values = |seed: f32| Tensor::<2>::from_floats([[0.1 * seed, -2.3, 7.7], [1e-3, 0.5, seed]], &device);
        let gradients = |by_hand_in: bool| {
            let input = values(3.0).autodiff().require_grad();
            let output = (input.clone() * values(1.7).autodiff()).tanh();
            let twice = output.clone() * output.clone();
            let root = |output: Tensor<2>, gradient: Tensor<2>| match by_hand_in {
                true => root(output, gradient).unwrap(),
                false => (output * gradient.autodiff()).sum(),
            };
            let mut gradients = (root(output, values(0.3)) + root(twice, values(5.1))).backward();
            input.grad_remove(&mut gradients).unwrap().into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(gradients(true), gradients(false));
        assert!(root(values(1.0), values(2.0)).is_none(), "a tensor outside a graph must give no root");
    }

    /// Tests the fallback of [`root`] for graphs with burn's own gradient checkpointing.
    #[test]
    fn a_backward_with_burns_checkpointing_starts_from_the_given_gradient() {
        let device = Device::flex().autodiff().gradient_checkpointing();
        let input = Tensor::<1>::from_floats([0.5, -2.0], &device).require_grad();
        let gradient = Tensor::<1>::from_floats([3.0, 0.25], &Device::flex());
        let gradients = root(input.clone() * 2.0, gradient).unwrap().backward();
        let found: Vec<f32> = input.grad(&gradients).unwrap().into_data().iter().collect();
        assert_eq!(found, [6.0, 0.5]);
    }
}
