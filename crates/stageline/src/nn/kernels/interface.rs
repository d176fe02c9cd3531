//! What backends compute in one piece, where burn has several operations.

use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::TensorMetadata;
use burn::backend::autodiff::ops::Backward;
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::tensor::{DType, Tensor};

use crate::nn::autograd::engine::recorded;
use crate::nn::kernels::products::Products;

/// A backend that does.
pub(crate) trait Kernels: Products {
    /// What the backward of a normalisation takes of each row.
    type Moments: Clone + Debug + Send + 'static;
    /// What the backward of attention takes.
    type Attended: Clone + Debug + Send + 'static;

    /// Whether it does on this device.
    fn are_there(device: &Device<Self>) -> bool;

    /// Whether they take numbers of this type.
    fn take(dtype: DType) -> bool {
        dtype == DType::F32
    }

    /// Whether they take this tensor.
    fn takes<const D: usize>(tensor: &Tensor<D>) -> bool {
        Self::take(tensor.dtype()) && !is_empty(tensor)
    }

    fn gelu_of(input: &FloatTensor<Self>) -> FloatTensor<Self>;

    fn gelu_to_input(input: &FloatTensor<Self>, gradient: &FloatTensor<Self>) -> FloatTensor<Self>;

    fn normalised(
        input: &FloatTensor<Self>,
        gamma: &FloatTensor<Self>,
        beta: Option<&FloatTensor<Self>>,
        epsilon: f32,
    ) -> (FloatTensor<Self>, Self::Moments);

    fn normalised_to_input(
        input: &FloatTensor<Self>,
        gamma: &FloatTensor<Self>,
        moments: &Self::Moments,
        gradient: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradients of scale and shift.
    fn normalised_to_parameters(
        input: &FloatTensor<Self>,
        moments: &Self::Moments,
        gradient: &FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    fn causal_attention(input: &FloatTensor<Self>, heads: usize) -> (FloatTensor<Self>, Self::Attended);

    fn causal_attention_to_input(
        attended: &Self::Attended,
        heads: usize,
        gradient: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The sum, and what its backward takes.
    fn cross_entropy(logits: &FloatTensor<Self>, targets: &IntTensor<Self>) -> [FloatTensor<Self>; 2];

    fn cross_entropy_to_logits(
        logits: &FloatTensor<Self>,
        targets: &IntTensor<Self>,
        kept: &FloatTensor<Self>,
        gradient: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// In f64 and in one order, whatever the number of cores: `[1]`.
    fn sum_of_squares(tensor: &FloatTensor<Self>) -> FloatTensor<Self>;
}

/// What burn's kernels for GPUs refuse.
fn is_empty<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.shape().num_elements() == 0
}

/// What a function makes for the backend whose tensors it is given, of those that have kernels.
macro_rules! of_their_kernels {
    ($function:path, $($argument:expr),+ $(,)?) => {{
        let found = None;
        #[cfg(feature = "flex")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Flex>, $($argument),+));
        #[cfg(feature = "cuda")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Cuda>, $($argument),+));
        #[cfg(feature = "remote")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Remote>, $($argument),+));
        found
    }};
}

pub(crate) use of_their_kernels;

/// An operation of one input: `forward` gives its output, and what its backward needs.
///
/// `None` where the input is no tensor of a backend and a device that have kernels for it.
pub(crate) fn operation<B: Kernels, O: Backward<B, 1>, const D: usize, const E: usize>(
    backward: O,
    input: &Tensor<D>,
    forward: impl FnOnce(FloatTensor<B>) -> (FloatTensor<B>, O::State),
) -> Option<Tensor<E>> {
    if !B::takes(input) {
        return None;
    }
    if !input.device().is_autodiff() {
        let input = B::plain(input.clone()).filter(|input| B::are_there(&input.device()))?;
        return Some(B::of_plain(forward(input).0));
    }
    let (input, node) = B::tracked(input.clone())?.into_parts();
    if !B::are_there(&input.device()) {
        return None;
    }
    let (output, state) = forward(input);
    Some(recorded::<B, O, 1, E>(backward, [node], state, output))
}

/// The sum of the squares of a tensor of no graph, in f64: `[1]`. `None` where no kernel is.
pub(crate) fn sum_of_squares<const D: usize>(tensor: &Tensor<D>) -> Option<Tensor<1>> {
    fn of<B: Kernels, const D: usize>(_: PhantomData<B>, tensor: &Tensor<D>) -> Option<Tensor<1>> {
        let tensor = B::plain(tensor.clone()).filter(|tensor| B::are_there(&tensor.device()))?;
        Some(B::of_plain(B::sum_of_squares(&tensor)))
    }
    if is_empty(tensor) {
        return None;
    }
    of_their_kernels!(of, tensor)
}
