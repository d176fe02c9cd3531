//! Computes a step of the optimizer AdamW on the CPU, in one pass over the memory.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use rayon::prelude::*;

use super::numbers::numbers;
use super::wide::wide;

/// The number of elements of a parameter that one CPU core updates at a time.
const CHUNK: usize = 1 << 14;

/// The factors of an AdamW step, which are the same for all elements of a parameter.
#[derive(Clone, Copy)]
pub struct Factors {
    /// The factors of the first moment: of its previous value (beta 1) and of the gradient.
    pub first: [f32; 2],
    /// The factors of the second moment: of its previous value (beta 2) and of the squared gradient.
    pub second: [f32; 2],
    /// The square root of the second moment's bias correction. The square root of the moment is divided by it.
    pub deviation: f32,
    /// The number that is added to the divided square root.
    pub epsilon: f32,
    /// The factor by which the weight decay multiplies the parameter.
    pub kept: f32,
    /// The learning rate divided by the first moment's bias correction.
    pub rate: f32,
}

/// Updates a parameter and its first and second moment, which are f32 tensors of one shape, and returns them. A tensor
/// is overwritten if nothing else uses its memory.
///
/// The result has the bits of a step that is composed of burn's operations.
pub fn update(
    tensors: [FloatTensor<Flex>; 3],
    gradient: &FloatTensor<Flex>,
    factors: Factors,
) -> [FloatTensor<Flex>; 3] {
    let mut tensors = tensors.map(whole);
    let gradient = gradient.to_contiguous();
    let [parameter, first, second] = tensors.each_mut().map(|tensor| {
        let elements = tensor.shape().num_elements();
        &mut tensor.storage_mut::<f32>()[..elements]
    });
    let moments = first.par_chunks_mut(CHUNK).zip(second.par_chunks_mut(CHUNK));
    let chunks = parameter.par_chunks_mut(CHUNK).zip(numbers(&gradient).par_chunks(CHUNK)).zip(moments);
    chunks.for_each(|((parameter, gradient), (first, second))| step(parameter, gradient, first, second, factors));
    tensors
}

/// Returns a tensor with the same elements whose memory begins with its first element and has no gaps.
fn whole(tensor: FloatTensor<Flex>) -> FloatTensor<Flex> {
    match tensor.layout().contiguous_offsets() {
        Some((0, _)) => tensor,
        _ => FloatTensor::<Flex>::from_data(tensor.into_data()),
    }
}

wide! {
    fn step(parameters: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32], factors: Factors) {
        let Factors { first: [before_1, now_1], second: [before_2, now_2], deviation, epsilon, kept, rate } = factors;
        let moments = first.iter_mut().zip(second);
        for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradients).zip(moments) {
            *first = *first * before_1 + gradient * now_1;
            *second = *second * before_2 + gradient * gradient * now_2;
            *parameter = *parameter * kept - *first / (second.sqrt() / deviation + epsilon) * rate;
        }
    }
}
