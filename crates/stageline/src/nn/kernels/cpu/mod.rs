//! The kernels on this host's CPU.

pub(crate) mod causal_attention;
mod cross_entropy;
mod gelu;
mod layer_norm;
mod matrix;
pub(crate) mod numbers;
pub(crate) mod products;
mod wide;

use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::tensor::{DType, FloatDType, TensorData};

use self::numbers::numbers;
use crate::nn::kernels::Kernels;

impl Kernels for Flex {
    /// The mean, and one over the deviation: `[rows, 2]`.
    type Moments = FloatTensor<Flex>;
    /// The input, and the weights of every head of every sample, block by block of queries.
    type Attended = (FloatTensor<Flex>, Arc<Vec<Vec<f32>>>);

    fn are_there(_: &Device<Flex>) -> bool {
        true
    }

    fn gelu_of(input: &FloatTensor<Flex>) -> FloatTensor<Flex> {
        gelu::values(&input.to_contiguous())
    }

    fn gelu_to_input(input: &FloatTensor<Flex>, gradient: &FloatTensor<Flex>) -> FloatTensor<Flex> {
        gelu::to_input(&input.to_contiguous(), &gradient.to_contiguous())
    }

    fn normalised(
        input: &FloatTensor<Flex>,
        gamma: &FloatTensor<Flex>,
        beta: Option<&FloatTensor<Flex>>,
        epsilon: f32,
    ) -> (FloatTensor<Flex>, FloatTensor<Flex>) {
        layer_norm::normalised(&input.to_contiguous(), &gamma.to_contiguous(), beta, epsilon)
    }

    fn normalised_to_input(
        input: &FloatTensor<Flex>,
        gamma: &FloatTensor<Flex>,
        moments: &FloatTensor<Flex>,
        gradient: &FloatTensor<Flex>,
    ) -> FloatTensor<Flex> {
        let (input, gradient) = (input.to_contiguous(), gradient.to_contiguous());
        layer_norm::gradient_of_input(&input, &gamma.to_contiguous(), moments, &gradient)
    }

    fn normalised_to_parameters(
        input: &FloatTensor<Flex>,
        moments: &FloatTensor<Flex>,
        gradient: &FloatTensor<Flex>,
    ) -> [FloatTensor<Flex>; 2] {
        layer_norm::gradients_of_parameters(&input.to_contiguous(), moments, &gradient.to_contiguous())
    }

    fn causal_attention(input: &FloatTensor<Flex>, heads: usize) -> (FloatTensor<Flex>, Self::Attended) {
        let input = input.to_contiguous();
        let (output, weights) = causal_attention::attended(&input, heads);
        (output, (input, Arc::new(weights)))
    }

    fn causal_attention_to_input(
        (input, weights): &Self::Attended,
        heads: usize,
        gradient: &FloatTensor<Flex>,
    ) -> FloatTensor<Flex> {
        causal_attention::to_input(input, heads, weights, &gradient.to_contiguous())
    }

    /// Beside the sum, of each row the largest logit, and one over the sum of all exponentials when that is taken off:
    /// `[rows, 2]`.
    fn cross_entropy(logits: &FloatTensor<Flex>, targets: &IntTensor<Flex>) -> [FloatTensor<Flex>; 2] {
        cross_entropy::summed(&logits.to_contiguous(), targets)
    }

    fn cross_entropy_to_logits(
        logits: &FloatTensor<Flex>,
        targets: &IntTensor<Flex>,
        scales: &FloatTensor<Flex>,
        gradient: &FloatTensor<Flex>,
    ) -> FloatTensor<Flex> {
        let (logits, gradient) = (logits.to_contiguous(), gradient.to_contiguous());
        cross_entropy::gradient_of_logits(&logits, targets, scales, &gradient)
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
