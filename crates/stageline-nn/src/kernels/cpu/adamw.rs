//! A fused AdamW step on the CPU, in one pass over memory.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use rayon::prelude::*;

use super::numbers::{numbers, of_numbers};
use super::overwritten::{Overwritten, PART};
use super::wide::wide;

/// Coefficients of an AdamW step, which are the same for all elements of a parameter.
#[derive(Clone, Copy)]
pub struct Factors {
    /// `[beta1, 1 - beta1]`, the coefficients of the previous first moment and of the gradient.
    pub first: [f32; 2],
    /// `[beta2, 1 - beta2]`, the coefficients of the previous second moment and of the squared gradient.
    pub second: [f32; 2],
    /// `sqrt(1 - beta2^time)`, the square root of the second moment's bias correction, which divides the second
    /// moment's square root.
    pub deviation: f32,
    /// Epsilon, which is added to `sqrt(second moment) / deviation` to avoid a division by zero.
    pub epsilon: f32,
    /// `1 - learning_rate * weight_decay`, the coefficient that decays the parameter.
    pub kept: f32,
    /// `learning_rate / (1 - beta1^time)`: the learning rate divided by the first moment's bias correction.
    pub rate: f32,
}

/// Performs one AdamW step, and returns the new parameter, first moment and second moment. All tensors are f32 tensors
/// of the same shape. `moments` is `None` in the first step.
///
/// Each result overwrites its old tensor if nothing else uses that tensor's memory, and is a new tensor otherwise. The
/// results are bitwise identical to a step that is composed of burn's operations.
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
    // The moments begin as -0, because adding -0 never changes a value; adding 0 would change -0 to 0.
    let zeros = || of_numbers(vec![-0.0; gradient.shape().num_elements()], gradient.shape());
    let [first, second] = moments.unwrap_or_else(|| [zeros(), zeros()]);
    let mut outputs = [parameter, first, second].map(Overwritten::of);
    let gradient = gradient.to_contiguous();
    let [parameters, first, second] = outputs.each_mut().map(|output| output.parts(PART));
    let parts = parameters.zip(numbers(&gradient).par_chunks(PART)).zip(first.zip(second));
    parts.for_each(|((parameters, gradients), (first, second))| step(parameters, gradients, first, second, factors));
    outputs.map(Overwritten::tensor)
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
