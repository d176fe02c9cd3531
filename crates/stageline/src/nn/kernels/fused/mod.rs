//! The kernels of burn's own operations, for devices that fuse them: what is between two products or sums becomes one
//! kernel.
//!
//! All of it is computed in f32, also of inputs in bf16 or f16, which are read and written as they are; products are
//! burn's, in the type of their inputs.
//!
//! burn's fusion takes operations as they come, and ends a kernel at the first that does not fit, with all that is used
//! again written down. So the order of operations counts here: what has another shape comes before, not in between, and
//! what is cheap is computed again instead of kept.

pub(crate) mod causal_attention;
pub(crate) mod cross_entropy;
pub(crate) mod gelu;
pub(crate) mod layer_norm;
pub(crate) mod sums;
pub(crate) mod table;

use burn::tensor::{FloatDType, Tensor};

fn wide<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if FloatDType::from(tensor.dtype()) == FloatDType::F64 { tensor } else { tensor.cast(FloatDType::F32) }
}

/// In the type of another tensor.
fn as_given<const D: usize, const E: usize>(tensor: Tensor<D>, given: &Tensor<E>) -> Tensor<D> {
    tensor.cast(FloatDType::from(given.dtype()))
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod checks {
    use burn::tensor::{Device, Distribution};

    use super::*;

    pub(crate) fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
        Tensor::random(shape, Distribution::Uniform(-2.0, 2.0), &Device::flex())
    }

    pub(crate) fn exactly<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
        tensor.clone().cast(FloatDType::F64)
    }

    /// What a function gives in f64, and what burn derives from it.
    pub(crate) fn derived<const D: usize, const E: usize>(
        function: impl Fn(Tensor<D>) -> Tensor<E>,
        input: &Tensor<D>,
        upstream: &Tensor<E>,
    ) -> (Tensor<E>, Tensor<D>) {
        let leaf = exactly(input).autodiff().require_grad();
        let output = function(leaf.clone());
        let gradients = (output.clone() * exactly(upstream).autodiff()).sum().backward();
        (output.inner(), leaf.grad(&gradients).unwrap())
    }

    /// In f32, bf16 and f16; the latter two as far as their 8 and 11 bits go.
    pub(crate) fn in_all<const D: usize>(tensor: &Tensor<D>, check: impl Fn(Tensor<D>, f64)) {
        check(tensor.clone(), 1e-5);
        check(tensor.clone().cast(FloatDType::BF16), 3e-2);
        check(tensor.clone().cast(FloatDType::F16), 4e-3);
    }

    #[track_caller]
    pub(crate) fn near<const D: usize>(found: Tensor<D>, exact: &Tensor<D>, bound: f64) {
        let off = (exactly(&found) - exact.clone()).abs().max().into_scalar::<f64>();
        let of = exact.clone().abs().max().into_scalar::<f64>().max(1.0);
        assert!(off <= bound * of, "off by {off:.1e} of {of:.1e}");
    }
}
