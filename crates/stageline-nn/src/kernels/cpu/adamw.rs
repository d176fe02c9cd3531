//! Computes a step of the optimizer AdamW on the CPU, in one pass over the memory.

use std::mem::MaybeUninit;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{Shape, TensorData};
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

/// A tensor that a step updates.
enum Target {
    /// A tensor whose memory nothing else uses. The step overwrites it.
    Own(FloatTensor<Flex>),
    /// A tensor that is in use elsewhere or is a view, and empty memory with room for its elements after the step.
    Copied { memory: Vec<f32>, before: FloatTensor<Flex> },
}

/// A part of a [`Target`]: numbers that a step overwrites, or numbers before it and memory for those after it.
enum Chunk<'a> {
    Own(&'a mut [f32]),
    Copied { memory: &'a mut [MaybeUninit<f32>], before: &'a [f32] },
}

/// Updates a parameter and its two moments, and returns the parameter, the first and the second moment. All tensors are
/// f32 tensors of one shape. `moments` is `None` in the first step.
///
/// The result overwrites a tensor whose memory nothing else uses, and has memory of its own otherwise. It has the bits
/// of a step that is composed of burn's operations.
///
/// # Panics
/// Panics if the shapes of the tensors differ.
pub fn update(
    parameter: FloatTensor<Flex>,
    gradient: &FloatTensor<Flex>,
    moments: Option<[FloatTensor<Flex>; 2]>,
    factors: Factors,
) -> [FloatTensor<Flex>; 3] {
    let is_of_its_shape = |tensor: &FloatTensor<Flex>| tensor.shape() == gradient.shape();
    let fits = is_of_its_shape(&parameter) && moments.iter().flatten().all(is_of_its_shape);
    assert!(fits, "the tensors of a step must have one shape");
    // -0 leaves every number unchanged that is added to it; 0 does not leave -0 unchanged.
    let zeros = || Target::Own(tensor(vec![-0.0; gradient.shape().num_elements()], gradient.shape()));
    let [first, second] = moments.map_or_else(|| [zeros(), zeros()], |moments| moments.map(Target::new));
    let mut targets = [Target::new(parameter), first, second];
    let gradient = gradient.to_contiguous();
    let [parameters, first, second] = targets.each_mut().map(Target::chunks);
    let moments = first.into_par_iter().zip(second);
    let chunks = parameters.into_par_iter().zip(numbers(&gradient).par_chunks(CHUNK)).zip(moments);
    chunks.for_each(|((parameters, gradients), (first, second))| {
        let [parameters, first, second] = [parameters, first, second].map(Chunk::filled);
        step(parameters, gradients, first, second, factors);
    });
    // SAFETY: the targets have the shape of the gradient, so every chunk was filled.
    targets.map(|target| unsafe { target.updated() })
}

/// Returns the numbers of a tensor as a CPU tensor of the given shape.
fn tensor(numbers: Vec<f32>, shape: Shape) -> FloatTensor<Flex> {
    FloatTensor::<Flex>::from_data(TensorData::new(numbers, shape))
}

impl Target {
    /// Creates the target for a tensor. The tensor is overwritten if it has the whole memory in which its elements are,
    /// and nothing else uses this memory.
    fn new(before: FloatTensor<Flex>) -> Self {
        let elements = before.shape().num_elements();
        let is_whole = before.layout().contiguous_offsets().is_some_and(|(first, _)| first == 0);
        if before.is_unique() && is_whole && before.bytes().len() == elements * size_of::<f32>() {
            return Self::Own(before);
        }
        Self::Copied { memory: Vec::with_capacity(elements), before: before.to_contiguous() }
    }

    /// Returns the target in parts of [`CHUNK`] elements; the last part may be smaller.
    fn chunks(&mut self) -> Vec<Chunk<'_>> {
        match self {
            Self::Own(tensor) => tensor.storage_mut::<f32>().chunks_mut(CHUNK).map(Chunk::Own).collect(),
            Self::Copied { memory, before } => {
                let before = numbers(before);
                let memory = memory.spare_capacity_mut()[..before.len()].chunks_mut(CHUNK);
                memory.zip(before.chunks(CHUNK)).map(|(memory, before)| Chunk::Copied { memory, before }).collect()
            }
        }
    }

    /// Returns the tensor after the step.
    ///
    /// # Safety
    /// All chunks must have been filled ([`Chunk::filled`]).
    unsafe fn updated(self) -> FloatTensor<Flex> {
        match self {
            Self::Own(tensor) => tensor,
            Self::Copied { mut memory, before } => {
                // SAFETY: the chunks cover as many numbers as `before` has, and by the contract all were written.
                unsafe { memory.set_len(before.shape().num_elements()) };
                tensor(memory, before.shape())
            }
        }
    }
}

impl<'a> Chunk<'a> {
    /// Returns the numbers to update, with their values before the step.
    fn filled(self) -> &'a mut [f32] {
        match self {
            Self::Own(numbers) => numbers,
            Self::Copied { memory, before } => memory.write_copy_of_slice(before),
        }
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
