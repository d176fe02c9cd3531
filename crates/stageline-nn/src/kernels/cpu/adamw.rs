//! Computes a step of the optimizer AdamW on the CPU, in one pass over the memory.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::TensorData;
use rayon::prelude::*;

use super::numbers::numbers;
use super::wide::wide;

/// The number of elements of a parameter that one CPU core updates at a time. In f32 they fit into a core's cache.
const CHUNK: usize = 1 << 14;

/// The factors of an AdamW step, which are the same for all elements of a parameter.
#[derive(Clone, Copy)]
pub struct Factors {
    /// The factors of the first moment: of its previous value (beta 1) and of the gradient (1 - beta 1).
    pub first: [f32; 2],
    /// The factors of the second moment: of its previous value (beta 2) and of the squared gradient (1 - beta 2).
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

/// A tensor that a step updates: the memory of the result, and the tensor with the previous elements.
struct Target {
    result: FloatTensor<Flex>,
    /// The tensor with the elements before the step; `None` if `result` has them.
    before: Option<FloatTensor<Flex>>,
}

/// Updates a parameter and its two moments, and returns the parameter, the first and the second moment. All tensors are
/// f32 tensors of one shape. `moments` is `None` in the first step.
///
/// The result overwrites a tensor whose memory nothing else uses, and has memory of its own otherwise. It has the bits
/// of a step that is composed of burn's operations.
pub fn update(
    parameter: FloatTensor<Flex>,
    gradient: &FloatTensor<Flex>,
    moments: Option<[FloatTensor<Flex>; 2]>,
    factors: Factors,
) -> [FloatTensor<Flex>; 3] {
    let parameter = Target::new(parameter);
    // -0 leaves every number unchanged that is added to it, 0 does not leave -0 unchanged.
    let moments = moments.map_or_else(|| [(); 2].map(|()| Target::filled(-0.0, gradient)), |all| all.map(Target::new));
    let [first, second] = moments;
    let gradient = gradient.to_contiguous();
    let mut targets = [parameter, first, second];
    {
        let [parameters, firsts, seconds] = targets.each_mut().map(Target::chunks);
        let moments = firsts.into_par_iter().zip(seconds);
        let chunks = parameters.into_par_iter().zip(numbers(&gradient).par_chunks(CHUNK)).zip(moments);
        chunks.for_each(|((parameters, gradients), (first, second))| {
            let [parameters, first, second] = [parameters, first, second].map(Chunk::filled);
            step(parameters, gradients, first, second, factors);
        });
    }
    targets.map(|target| target.result)
}

/// A part of a [`Target`]: the numbers to write, and the numbers before the step unless those to write have them.
struct Chunk<'a> {
    result: &'a mut [f32],
    before: Option<&'a [f32]>,
}

impl<'a> Chunk<'a> {
    /// Returns the numbers to write, with the values before the step.
    fn filled(self) -> &'a mut [f32] {
        if let Some(before) = self.before {
            self.result.copy_from_slice(before);
        }
        self.result
    }
}

impl Target {
    /// Creates the target for the tensor `before`. Reuses the memory of the tensor if the tensor has the whole memory,
    /// and nothing else uses it.
    fn new(before: FloatTensor<Flex>) -> Self {
        let size = before.shape().num_elements() * size_of::<f32>();
        let is_whole = before.layout().contiguous_offsets().is_some_and(|(first, _)| first == 0);
        if before.is_unique() && is_whole && before.bytes().len() == size {
            return Self { result: before, before: None };
        }
        Self { before: Some(before.to_contiguous()), ..Self::filled(0.0, &before) }
    }

    /// Creates a target of the shape of `like`, with the number `value` everywhere.
    fn filled(value: f32, like: &FloatTensor<Flex>) -> Self {
        let numbers = vec![value; like.shape().num_elements()];
        Self { result: FloatTensor::<Flex>::from_data(TensorData::new(numbers, like.shape())), before: None }
    }

    /// Returns the numbers of the target in parts of [`CHUNK`] numbers; the last part may be shorter.
    fn chunks(&mut self) -> Vec<Chunk<'_>> {
        let mut before = self.before.as_ref().map(|tensor| numbers(tensor).chunks(CHUNK));
        let results = self.result.storage_mut::<f32>().chunks_mut(CHUNK);
        results.map(|result| Chunk { result, before: before.as_mut().and_then(Iterator::next) }).collect()
    }
}

wide! {
    fn step(parameters: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32], factors: Factors) {
        let Factors { first: [beta_1, rest_1], second: [beta_2, rest_2], deviation, epsilon, kept, rate } = factors;
        let moments = first.iter_mut().zip(second);
        for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradients).zip(moments) {
            *first = *first * beta_1 + gradient * rest_1;
            *second = *second * beta_2 + gradient * gradient * rest_2;
            *parameter = *parameter * kept - *first / (second.sqrt() / deviation + epsilon) * rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Factors, step};
    use crate::kernels::cpu::wide::versions::assert_same_bits;

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let numbers = |salt: usize| (0..101).map(|at| ((at * salt % 83) as f32 - 41.0) * 0.013).collect::<Vec<_>>();
        let factors = Factors {
            first: [0.9, 0.1],
            second: [0.999, 0.001],
            deviation: 0.7,
            epsilon: 1e-8,
            kept: 0.999,
            rate: 1e-3,
        };
        assert_same_bits(|| {
            let (mut parameters, mut first) = (numbers(7), numbers(11));
            let mut second: Vec<_> = numbers(13).into_iter().map(f32::abs).collect();
            step(&mut parameters, &numbers(17), &mut first, &mut second, factors);
            [parameters, first, second].concat()
        });
    }
}
