//! Computes a step of the optimizer AdamW on the CPU, in one pass over the memory.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use rayon::iter::Either;
use rayon::prelude::*;

use super::copied::{Copied, PART};
use super::numbers::{is_own, numbers, of_numbers};
use super::wide::wide;

/// The factors of an AdamW step, which are the same for all elements of a parameter.
#[derive(Clone, Copy)]
pub struct Factors {
    /// The factors of the first moment: of its previous value (beta 1) and of the gradient (1 - beta 1).
    pub first: [f32; 2],
    /// The factors of the second moment: of its previous value (beta 2) and of the squared gradient (1 - beta 2).
    pub second: [f32; 2],
    /// The square root of the second moment's bias correction. The square root of the moment is divided by it.
    pub deviation: f32,
    /// The number (epsilon) that is added to the square root of the second moment after its division by `deviation`.
    pub epsilon: f32,
    /// The factor that the weight decay multiplies the parameter by: 1 - learning rate x weight decay.
    pub kept: f32,
    /// The learning rate divided by the first moment's bias correction.
    pub rate: f32,
}

/// A tensor that an AdamW step updates: the parameter, or one of its two moments.
enum Target {
    /// A tensor whose memory nothing else uses. The step overwrites it.
    Own(FloatTensor<Flex>),
    /// A tensor that is in use elsewhere or is a view. The step overwrites a copy.
    Copied(Copied),
}

/// Updates a parameter and its two moments, and returns the parameter, the first and the second moment. All tensors are
/// f32 tensors of one shape. `moments` is `None` in the first step.
///
/// Each result overwrites its old tensor if nothing else uses that tensor's memory, and is a new tensor otherwise. The
/// results have the same bits as a step that is composed of burn's operations.
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
    // The moments begin as -0, because -0 changes no number that is added to it; 0 would change -0 to 0.
    let zeros = || Target::Own(of_numbers(vec![-0.0; gradient.shape().num_elements()], gradient.shape()));
    let [first, second] = moments.map_or_else(|| [zeros(), zeros()], |moments| moments.map(Target::new));
    let mut targets = [Target::new(parameter), first, second];
    let gradient = gradient.to_contiguous();
    let [parameters, first, second] = targets.each_mut().map(Target::parts);
    let parts = parameters.zip(numbers(&gradient).par_chunks(PART)).zip(first.zip(second));
    parts.for_each(|((parameters, gradients), (first, second))| step(parameters, gradients, first, second, factors));
    targets.map(Target::tensor)
}

impl Target {
    /// Chooses the memory for the updated values of a tensor: the tensor itself if nothing else uses its memory, and
    /// otherwise a copy.
    fn new(before: FloatTensor<Flex>) -> Self {
        if is_own(&before) { Self::Own(before) } else { Self::Copied(Copied::of(&before.to_contiguous())) }
    }

    /// Returns the tensor or copy that the step overwrites, in parts of [`PART`] elements; the last part may be
    /// smaller.
    fn parts(&mut self) -> impl IndexedParallelIterator<Item = &mut [f32]> {
        match self {
            Self::Own(tensor) => Either::Left(tensor.storage_mut::<f32>().par_chunks_mut(PART)),
            Self::Copied(copy) => Either::Right(copy.parts(PART)),
        }
    }

    /// Returns the updated tensor.
    fn tensor(self) -> FloatTensor<Flex> {
        match self {
            Self::Own(tensor) => tensor,
            Self::Copied(copy) => copy.tensor(),
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
