//! What operations of our own have in common: they are in f32, on the host, with a graph or without.

use burn::backend::autodiff::ops::Backward;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::tensor::{DType, Tensor};

use crate::backends::recorded;

/// An operation of one input: `forward` gives its output, and what its backward needs, of a contiguous one.
///
/// `None` where the input is not in f32 on the host.
pub(super) fn operation<B: Backward<Flex, 1>, const D: usize, const E: usize>(
    backward: B,
    input: &Tensor<D>,
    forward: impl FnOnce(FloatTensor<Flex>) -> (FloatTensor<Flex>, B::State),
) -> Option<Tensor<E>> {
    if input.dtype() != DType::F32 {
        return None;
    }
    if !input.device().is_autodiff() {
        let input = input.clone().try_into_primitive::<Flex>().ok()?;
        return Some(Tensor::from_primitive::<Flex>(forward(input.to_contiguous()).0));
    }
    let (input, node) = input.clone().try_into_primitive::<Autodiff<Flex>>().ok()?.into_parts();
    let (output, state) = forward(input.to_contiguous());
    Some(recorded::<Flex, B, 1, E>(backward, [node], state, output))
}

/// The numbers of a contiguous tensor in f32.
pub(super) fn numbers(tensor: &FloatTensor<Flex>) -> &[f32] {
    tensor.as_slice::<f32>().expect("it is contiguous, and in f32")
}
