//! [`swiglu`]: the gated activation function of Llama's feed-forward parts.

use burn::tensor::Tensor;
use burn::tensor::activation::silu;

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::engine::of_their_backend;

/// Returns the activation function SwiGLU, `gate x sigmoid(gate) x up`, of every element of two tensors of the same
/// shape (Shazeer, 2020, [arXiv:2002.05202](https://arxiv.org/abs/2002.05202)).
///
/// In f32 on this host's CPU this is one operation with SIMD instructions; it saves its inputs for the backward pass.
///
/// # Panics
/// Panics if the shapes differ.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    assert_eq!(gate.dims(), up.dims(), "the inputs of SwiGLU must have one shape");
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    if let Some(output) = of_their_backend!(one::swiglu, &gate, &up) {
        return output;
    }
    silu(gate) * up
}

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
mod one {
    use std::marker::PhantomData;

    use burn::backend::autodiff::checkpoint::base::Checkpointer;
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops};
    use burn::backend::tensor::FloatTensor;
    use burn::tensor::Tensor;

    use crate::kernels::declared::name::SWIGLU;
    use crate::kernels::{Kernels, operation};

    /// The activation function SwiGLU as a single operation in burn's autodiff graph.
    #[derive(Debug)]
    struct SwiGlu;

    impl<B: Kernels> Backward<B, 2> for SwiGlu {
        /// The tensors saved for SwiGLU's backward pass: the forward pass's two inputs, `gate` and `up`.
        type State = [FloatTensor<B>; 2];

        fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<B>(&ops.node);
            let [gate, up] = ops.state;
            for (parent, found) in ops.parents.into_iter().zip(B::swiglu_to_inputs(gate, up, &gradient)) {
                if let Some(parent) = parent {
                    gradients.register::<B>(parent.id, found);
                }
            }
        }
    }

    /// Computes SwiGLU with the backend's kernel; returns `None` if there is no kernel for the inputs or their device.
    pub fn swiglu<B: Kernels, const D: usize>(
        _: PhantomData<B>,
        gate: &Tensor<D>,
        up: &Tensor<D>,
    ) -> Option<Tensor<D>> {
        operation::<B, _, 2, D, D>(SWIGLU, SwiGlu, [gate, up], |[gate, up]| (B::swiglu(&gate, &up), [gate, up]))
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::activation::silu;
    use burn::tensor::{Device, FloatDType, Tensor};

    use crate::test_numbers::uniform;

    #[test]
    fn values_and_gradients_match_burns_in_f64() {
        let device = Device::flex();
        let random = |bound: f64| uniform([130, 301], -bound..bound, &device);
        let (gate, up, upstream) = (random(30.0), random(3.0), random(2.0));
        let both = |function: fn(Tensor<2>, Tensor<2>) -> Tensor<2>, dtype: FloatDType| {
            let [gate, up] = [&gate, &up].map(|input| input.clone().cast(dtype).autodiff().require_grad());
            let output = function(gate.clone(), up.clone());
            let gradients = (output.clone() * upstream.clone().cast(dtype).autodiff()).sum().backward();
            let found = [output.inner(), gate.grad(&gradients).unwrap(), up.grad(&gradients).unwrap()];
            found.map(|tensor| tensor.cast(FloatDType::F64))
        };
        let found = both(super::swiglu, FloatDType::F32);
        let exact = both(|gate, up| silu(gate) * up, FloatDType::F64);
        for (found, exact) in found.iter().zip(exact) {
            let off = (found.clone() - exact.clone()).abs() / exact.abs().clamp_min(1.0);
            let off = off.max().into_scalar::<f64>();
            assert!(off < 3e-6, "{off}");
        }
        let plain = super::swiglu(gate, up).cast(FloatDType::F64);
        assert_eq!(plain.into_data(), found[0].clone().into_data(), "a graph must not change the result");
    }
}
