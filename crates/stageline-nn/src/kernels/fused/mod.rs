//! Normalisation, GELU, SwiGLU, causal attention, cross-entropy, table look-ups and sums for GPUs, composed of burn's
//! own operations, which burn fuses into few kernels (operator fusion).
//!
//! Inputs and outputs are burn tensors that autodiff does not track, in f32, bf16 or f16. Everything between two matrix
//! products or reductions becomes one kernel, which computes in f32, and reads and writes the inputs' dtype. Matrix
//! products are burn's, in the dtype of their inputs.
//!
//! burn's fusion takes operations in the order of their calls. It ends a kernel at the first operation that does not
//! fit, and then stores every result that is used again. The order of operations therefore matters here: reshapes come
//! first instead of in between, and cheap results are recomputed instead of kept. This folder must not launch kernels
//! of its own, and must not build autodiff graphs.

pub mod causal_attention;
pub mod cross_entropy;
pub mod gelu;
pub mod layer_norm;
pub mod sums;
pub mod swiglu;
pub mod table;

use burn::tensor::{FloatDType, Tensor};

/// Casts a tensor to f32, the dtype of intermediate results. A tensor in f64 is returned unchanged.
fn wide<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if FloatDType::from(tensor.dtype()) == FloatDType::F64 { tensor } else { tensor.cast(FloatDType::F32) }
}

/// Casts `tensor` to the dtype of the tensor `given`.
fn as_given<const D: usize, const E: usize>(tensor: Tensor<D>, given: &Tensor<E>) -> Tensor<D> {
    tensor.cast(FloatDType::from(given.dtype()))
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod checks {
    use burn::tensor::Device;

    use super::*;
    use crate::test_numbers::uniform;

    pub fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
        uniform(shape, -2.0..2.0, &Device::flex())
    }

    pub fn exactly<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
        tensor.clone().cast(FloatDType::F64)
    }

    /// Returns the exact values for the test of a kernel: the output of `function` for `input`, and the gradient with
    /// respect to `input`, where `upstream` is the gradient with respect to the output. burn's autodiff computes both
    /// in f64.
    pub fn derived<const D: usize, const E: usize>(
        function: impl Fn(Tensor<D>) -> Tensor<E>,
        input: &Tensor<D>,
        upstream: &Tensor<E>,
    ) -> (Tensor<E>, Tensor<D>) {
        let leaf = exactly(input).autodiff().require_grad();
        let output = function(leaf.clone());
        let gradients = (output.clone() * exactly(upstream).autodiff()).sum().backward();
        (output.inner(), leaf.grad(&gradients).unwrap())
    }

    /// Calls a test's `check` with `tensor` in f32, in bf16 and in f16. The second argument of `check` is an error
    /// bound that suits the type.
    pub fn in_all<const D: usize>(tensor: &Tensor<D>, check: impl Fn(Tensor<D>, f64)) {
        check(tensor.clone(), 1e-5);
        check(tensor.clone().cast(FloatDType::BF16), 3e-2);
        check(tensor.clone().cast(FloatDType::F16), 4e-3);
    }

    /// Panics if an element of `found` differs too much from the same element of `exact`. The largest allowed
    /// difference is `bound` times the largest magnitude in `exact`, or `bound` if that magnitude is below 1.
    #[track_caller]
    pub fn near<const D: usize>(found: Tensor<D>, exact: &Tensor<D>, bound: f64) {
        let off = (exactly(&found) - exact.clone()).abs().max().into_scalar::<f64>();
        let size = exact.clone().abs().max().into_scalar::<f64>().max(1.0);
        assert!(off <= bound * size, "off by {off:.1e} of {size:.1e}");
    }
}
