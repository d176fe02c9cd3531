//! What backends compute in one piece, where burn has several operations.

use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::TensorMetadata;
use burn::backend::autodiff::ops::Backward;
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::tensor::{DType, Tensor};

use super::products::Products;
use crate::backends::recorded;

/// A backend that does, of tensors in f32.
pub(crate) trait Kernels: Products {
    /// The weights of attention, as its backward takes them.
    type Weights: Clone + Debug + Send + 'static;

    /// Whether it does on this device.
    fn are_there(device: &Device<Self>) -> bool;

    fn gelu_of(input: &FloatTensor<Self>) -> FloatTensor<Self>;

    fn gelu_to_input(input: &FloatTensor<Self>, gradient: &FloatTensor<Self>) -> FloatTensor<Self>;

    /// The output, and of each row the mean, and one over the deviation: `[rows, 2]`.
    fn normalised(
        input: &FloatTensor<Self>,
        gamma: &FloatTensor<Self>,
        beta: Option<&FloatTensor<Self>>,
        epsilon: f32,
    ) -> [FloatTensor<Self>; 2];

    fn normalised_to_input(
        input: &FloatTensor<Self>,
        gamma: &FloatTensor<Self>,
        moments: &FloatTensor<Self>,
        gradient: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradients of scale and shift.
    fn normalised_to_parameters(
        input: &FloatTensor<Self>,
        moments: &FloatTensor<Self>,
        gradient: &FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    fn causal_attention(input: &FloatTensor<Self>, heads: usize) -> (FloatTensor<Self>, Self::Weights);

    fn causal_attention_to_input(
        input: &FloatTensor<Self>,
        heads: usize,
        weights: &Self::Weights,
        gradient: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The sum, and of each row the largest logit, and one over the sum of all exponentials when that is taken off: `[rows, 2]`.
    fn cross_entropy(logits: &FloatTensor<Self>, targets: &IntTensor<Self>) -> [FloatTensor<Self>; 2];

    fn cross_entropy_to_logits(
        logits: &FloatTensor<Self>,
        targets: &IntTensor<Self>,
        scales: &FloatTensor<Self>,
        gradient: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// In f64 and in one order, whatever the number of cores: `[1]`.
    fn sum_of_squares(tensor: &FloatTensor<Self>) -> FloatTensor<Self>;
}

/// What a function makes for the backend whose tensors it is given, of those that have kernels.
macro_rules! of_their_kernels {
    ($function:path, $($argument:expr),+ $(,)?) => {{
        let found = None;
        #[cfg(feature = "flex")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Flex>, $($argument),+));
        #[cfg(feature = "remote")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Remote>, $($argument),+));
        found
    }};
}

pub(crate) use of_their_kernels;

/// An operation of one input: `forward` gives its output, and what its backward needs.
///
/// `None` where the input is not in f32, or no tensor of a backend and a device that have kernels.
pub(super) fn operation<B: Kernels, O: Backward<B, 1>, const D: usize, const E: usize>(
    backward: O,
    input: &Tensor<D>,
    forward: impl FnOnce(FloatTensor<B>) -> (FloatTensor<B>, O::State),
) -> Option<Tensor<E>> {
    if input.dtype() != DType::F32 {
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
    of_their_kernels!(of, tensor)
}

#[cfg(feature = "flex")]
mod host {
    use std::sync::Arc;

    use burn::backend::Flex;
    use burn::backend::ops::FloatTensorOps;
    use burn::backend::tensor::{Device, FloatTensor, IntTensor};
    use burn::tensor::{DType, FloatDType, TensorData};

    use super::super::{causal_attention, cross_entropy, gelu, layer_norm};
    use super::Kernels;

    impl Kernels for Flex {
        /// Of every head of every sample, block by block of queries.
        type Weights = Arc<Vec<Vec<f32>>>;

        fn are_there(_: &Device<Flex>) -> bool {
            true
        }

        fn gelu_of(input: &FloatTensor<Flex>) -> FloatTensor<Flex> {
            gelu::host::values(&input.to_contiguous())
        }

        fn gelu_to_input(input: &FloatTensor<Flex>, gradient: &FloatTensor<Flex>) -> FloatTensor<Flex> {
            gelu::host::to_input(&input.to_contiguous(), &gradient.to_contiguous())
        }

        fn normalised(
            input: &FloatTensor<Flex>,
            gamma: &FloatTensor<Flex>,
            beta: Option<&FloatTensor<Flex>>,
            epsilon: f32,
        ) -> [FloatTensor<Flex>; 2] {
            layer_norm::host::normalised(&input.to_contiguous(), &gamma.to_contiguous(), beta, epsilon)
        }

        fn normalised_to_input(
            input: &FloatTensor<Flex>,
            gamma: &FloatTensor<Flex>,
            moments: &FloatTensor<Flex>,
            gradient: &FloatTensor<Flex>,
        ) -> FloatTensor<Flex> {
            let (input, gradient) = (input.to_contiguous(), gradient.to_contiguous());
            layer_norm::host::gradient_of_input(&input, &gamma.to_contiguous(), moments, &gradient)
        }

        fn normalised_to_parameters(
            input: &FloatTensor<Flex>,
            moments: &FloatTensor<Flex>,
            gradient: &FloatTensor<Flex>,
        ) -> [FloatTensor<Flex>; 2] {
            layer_norm::host::gradients_of_parameters(&input.to_contiguous(), moments, &gradient.to_contiguous())
        }

        fn causal_attention(input: &FloatTensor<Flex>, heads: usize) -> (FloatTensor<Flex>, Self::Weights) {
            let (output, weights) = causal_attention::host::attended(&input.to_contiguous(), heads);
            (output, Arc::new(weights))
        }

        fn causal_attention_to_input(
            input: &FloatTensor<Flex>,
            heads: usize,
            weights: &Self::Weights,
            gradient: &FloatTensor<Flex>,
        ) -> FloatTensor<Flex> {
            causal_attention::host::to_input(&input.to_contiguous(), heads, weights, &gradient.to_contiguous())
        }

        fn cross_entropy(logits: &FloatTensor<Flex>, targets: &IntTensor<Flex>) -> [FloatTensor<Flex>; 2] {
            cross_entropy::host::summed(&logits.to_contiguous(), targets)
        }

        fn cross_entropy_to_logits(
            logits: &FloatTensor<Flex>,
            targets: &IntTensor<Flex>,
            scales: &FloatTensor<Flex>,
            gradient: &FloatTensor<Flex>,
        ) -> FloatTensor<Flex> {
            let (logits, gradient) = (logits.to_contiguous(), gradient.to_contiguous());
            cross_entropy::host::gradient_of_logits(&logits, targets, scales, &gradient)
        }

        /// The CPU backend adds in parallel.
        fn sum_of_squares(tensor: &FloatTensor<Flex>) -> FloatTensor<Flex> {
            let square = |value: f64| value * value;
            let sum: f64 = match tensor.dtype() {
                DType::F32 => numbers(&tensor.to_contiguous()).iter().map(|&value| square(value.into())).sum(),
                _ => {
                    let wide = Flex::float_cast(tensor.clone(), FloatDType::F64).to_contiguous();
                    wide.as_slice::<f64>().expect("it is contiguous, and in f64").iter().copied().map(square).sum()
                }
            };
            FloatTensor::<Flex>::from_data(TensorData::new(vec![sum], [1]))
        }
    }

    /// The numbers of a contiguous tensor in f32.
    pub(crate) fn numbers(tensor: &FloatTensor<Flex>) -> &[f32] {
        tensor.as_slice::<f32>().expect("it is contiguous, and in f32")
    }

    /// The same, in twos.
    pub(crate) fn pairs(tensor: &FloatTensor<Flex>) -> &[[f32; 2]] {
        numbers(tensor).as_chunks().0
    }

    /// Twos, as `[n, 2]`.
    pub(crate) fn of_pairs(pairs: Vec<[f32; 2]>) -> FloatTensor<Flex> {
        let rows = pairs.len();
        FloatTensor::<Flex>::from_data(TensorData::new(pairs.into_flattened(), [rows, 2]))
    }
}

#[cfg(feature = "flex")]
pub(crate) use host::{numbers, of_pairs, pairs};
