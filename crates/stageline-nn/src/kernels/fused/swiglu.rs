//! Computes the activation function SwiGLU and its gradients on GPUs, with burn's own operations, which burn fuses into
//! few kernels.

use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;

use super::{as_given, wide};

/// Returns SwiGLU, `gate * sigmoid(gate) * up`, of every element of two tensors of the same shape, in the dtype of the
/// inputs.
pub(crate) fn values(gate: &Tensor<2>, up: &Tensor<2>) -> Tensor<2> {
    let x = wide(gate.clone());
    as_given(x.clone() * sigmoid(x) * wide(up.clone()), gate)
}

/// Returns the gradients of the loss with respect to `gate` and `up`, the inputs of SwiGLU. `gradient` is the gradient
/// with respect to SwiGLU's output.
pub(crate) fn to_inputs(gate: &Tensor<2>, up: &Tensor<2>, gradient: &Tensor<2>) -> [Tensor<2>; 2] {
    let x = || wide(gate.clone());
    let upstream = || wide(gradient.clone());
    let share = sigmoid(x());
    let slope = share.clone() + x() * share.clone() * (share.clone().neg() + 1.0);
    [upstream() * wide(up.clone()) * slope, upstream() * x() * share].map(|found| as_given(found, gate))
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::activation::silu;

    use super::super::checks::{derived, exactly, in_all, near, random};
    use super::*;

    #[test]
    fn swiglu_matches_burns_in_f64() {
        let [gate, up, upstream] = [(); 3].map(|()| random([20, 25]));
        in_all(&gate, |gate, bound| {
            let of_gate = |gate| silu(gate) * exactly(&up).autodiff();
            let (output, to_gate) = derived(of_gate, &gate, &upstream);
            let of_up = |up| silu(exactly(&gate).autodiff()) * up;
            let (_, to_up) = derived(of_up, &up, &upstream);
            near(values(&gate, &up), &output, bound);
            let found = to_inputs(&gate, &up, &upstream);
            near(found[0].clone(), &to_gate, bound);
            near(found[1].clone(), &to_up, bound);
        });
    }
}
