//! Computes the activation function SwiGLU and its gradients on the CPU, with SIMD instructions.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use rayon::prelude::*;

use super::numbers::numbers;
use super::overwritten::{Overwritten, PART};
use super::wide::{sigmoid, wide};

/// Returns SwiGLU, `gate * sigmoid(gate) * up`, of every element of two contiguous CPU tensors.
pub fn values(gate: &FloatTensor<Flex>, up: &FloatTensor<Flex>) -> FloatTensor<Flex> {
    let mut output = Overwritten::of(gate.clone());
    output.parts(PART).zip(numbers(up).par_chunks(PART)).for_each(|(gate, up)| gated(gate, up));
    output.tensor()
}

/// Returns the gradients of the loss with respect to `gate` and `up`, the inputs of SwiGLU. `gradient` is the gradient
/// with respect to SwiGLU's output, and must be contiguous.
pub fn to_inputs(
    gate: FloatTensor<Flex>,
    up: FloatTensor<Flex>,
    gradient: &FloatTensor<Flex>,
) -> [FloatTensor<Flex>; 2] {
    let [mut to_gate, mut to_up] = [gate, up].map(Overwritten::of);
    let outputs = to_gate.parts(PART).zip(to_up.parts(PART));
    outputs.zip(numbers(gradient).par_chunks(PART)).for_each(|((gate, up), gradient)| to_both(gate, up, gradient));
    [to_gate, to_up].map(Overwritten::tensor)
}

wide! {
    // Computes SwiGLU in place: replaces each element of `gate` by `gate * sigmoid(gate) * up`.
    fn gated(gate: &mut [f32], up: &[f32]) {
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate *= sigmoid(*gate) * up;
        }
    }
}

wide! {
    // Replaces the elements of SwiGLU's inputs, `gate` and `up`, by their gradients. `gradient` is the gradient of the
    // output.
    fn to_both(gate: &mut [f32], up: &mut [f32], gradient: &[f32]) {
        for ((gate, up), gradient) in gate.iter_mut().zip(up).zip(gradient) {
            let share = sigmoid(*gate);
            let silu = *gate * share;
            *gate = gradient * *up * (share + silu * (1.0 - share));
            *up = gradient * silu;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{gated, to_both};
    use crate::kernels::cpu::wide::versions::assert_same_bits;

    #[test]
    fn extreme_gates_give_the_limits_of_swiglu_and_its_gradients() {
        for (number, [value, slope]) in
            [(-f32::MAX, [0.0, 0.0]), (-1e3, [0.0, 0.0]), (1e3, [1e3, 1.0]), (1e38, [1e38, 1.0])]
        {
            let (mut gate, mut up) = ([number], [1.0]);
            gated(&mut gate, &up);
            assert_eq!(gate, [value]);
            gate = [number];
            to_both(&mut gate, &mut up, &[1.0]);
            assert_eq!([gate, up], [[slope], [value]], "{number}");
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let numbers = |salt: usize| (0..101).map(|at| ((at * salt % 83) as f32 - 41.0) * 0.13).collect::<Vec<_>>();
        assert_same_bits(|| {
            let mut gate = numbers(7);
            gated(&mut gate, &numbers(11));
            gate
        });
        assert_same_bits(|| {
            let (mut gate, mut up) = (numbers(7), numbers(11));
            to_both(&mut gate, &mut up, &numbers(13));
            [gate, up].concat()
        });
    }
}
