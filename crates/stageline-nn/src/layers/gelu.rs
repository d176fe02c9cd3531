//! [`gelu`] and [`gelu_tanh`]: the Gaussian error linear unit (GELU), an activation function, with SIMD instructions on
//! this host's CPU.

use burn::tensor::activation;
use burn::tensor::{DType, FloatDType, Tensor};

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::engine::of_their_backend;
#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::kernels::variants::GeluForm;

/// Returns the activation function GELU, `x Phi(x)`, of every element of `input`. `Phi` is the cumulative distribution
/// function of the standard normal distribution (Hendrycks and Gimpel, 2016,
/// [arXiv:1606.08415](https://arxiv.org/abs/1606.08415)).
///
/// [burn's function](burn::tensor::activation::gelu) computes the same values. In f32 on this host's CPU this function
/// is many times as fast as burn's, because burn 0.22 computes `erf` there without SIMD instructions. The error of a
/// value is then below 8e-7, and the error of a derivative below 4e-7. These errors are relative if the exact value is
/// greater than 1, and absolute otherwise.
pub fn gelu<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    if let Some(output) = of_their_backend!(one::gelu, &input, GeluForm::Exact) {
        return output;
    }
    activation::gelu(input)
}

/// Returns GELU's tanh approximation of every element of `input`: `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
/// GPT-2 uses this form (Hendrycks and Gimpel, 2016, [arXiv:1606.08415](https://arxiv.org/abs/1606.08415), section 2).
pub fn gelu_tanh<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    if let Some(output) = of_their_backend!(one::gelu, &input, GeluForm::Tanh) {
        return output;
    }
    match input.dtype() {
        // The cube of a large input overflows in f16, and `1 + tanh` rounds to 0 in bf16 for some negative inputs.
        DType::F16 | DType::BF16 => {
            let given = FloatDType::from(input.dtype());
            activation::gelu_approximate(input.cast(FloatDType::F32)).cast(given)
        }
        _ => activation::gelu_approximate(input),
    }
}

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
mod one {
    use std::marker::PhantomData;

    use burn::backend::autodiff::checkpoint::base::Checkpointer;
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops};
    use burn::backend::tensor::FloatTensor;
    use burn::tensor::Tensor;

    use crate::kernels::declared::name::GELU;
    use crate::kernels::variants::GeluForm;
    use crate::kernels::{Kernels, operation};

    /// The activation function GELU as a single operation in burn's autodiff graph.
    #[derive(Debug)]
    struct Gelu;

    impl<B: Kernels> Backward<B, 1> for Gelu {
        /// The values saved for GELU's backward pass: the forward pass's input, and the form of GELU (exact or tanh).
        type State = (FloatTensor<B>, GeluForm);

        fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<B>(&ops.node);
            if let [Some(parent)] = ops.parents {
                let (input, form) = &ops.state;
                gradients.register::<B>(parent.id, B::gelu_to_input(input, gradient, *form));
            }
        }
    }

    /// Computes GELU with the backend's kernel; returns `None` if there is no kernel for the input or its device.
    pub fn gelu<B: Kernels, const D: usize>(_: PhantomData<B>, input: &Tensor<D>, form: GeluForm) -> Option<Tensor<D>> {
        operation::<B, _, 1, D, D>(GELU, Gelu, [input], |[input]| (B::gelu_of(&input, form), (input, form)))
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::{Device, FloatDType, Tensor, activation};

    use crate::test_numbers::uniform;

    type Function = fn(Tensor<2>) -> Tensor<2>;

    #[test]
    fn gelu_matches_burns_up_to_the_last_bits() {
        let device = Device::flex();
        let input = uniform([70, 300], -6.0..6.0, &device);
        let both = |gelu: fn(Tensor<2>) -> Tensor<2>, transposed: bool| {
            let leaf = input.clone().autodiff().require_grad();
            let output = gelu(if transposed { leaf.clone().transpose() } else { leaf.clone() });
            let gradients = (output.clone() * output.clone()).sum().backward();
            (output.inner(), leaf.grad(&gradients).unwrap(), gelu(input.clone()))
        };
        let pairs: [[Function; 2]; 2] =
            [[super::gelu, activation::gelu], [super::gelu_tanh, activation::gelu_approximate]];
        for ([ours, theirs], transposed) in pairs.into_iter().flat_map(|pair| [(pair, false), (pair, true)]) {
            let (ours, theirs) = (both(ours, transposed), both(theirs, transposed));
            let apart = |ours: Tensor<2>, theirs: Tensor<2>| (ours - theirs).abs().max().into_scalar::<f32>();
            assert!(apart(ours.0.clone(), theirs.0) < 4e-6);
            assert!(apart(ours.1, theirs.1) < 4e-5);
            assert!(apart(ours.2.clone(), theirs.2) < 4e-6);
            let (tracked, untracked) = (ours.0, if transposed { ours.2.transpose() } else { ours.2 });
            assert_eq!(tracked.into_data(), untracked.into_data(), "a graph must not change the result");
        }
    }

    /// Tests GELU's tanh approximation in half precision against the formula in f64, for large and small values and
    /// derivatives.
    #[test]
    fn the_tanh_form_in_half_precision_is_rounded_once() {
        let device = Device::flex();
        let exact = |x: f64| {
            let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner(x).tanh())
        };
        for (dtype, rounding) in [(FloatDType::F16, 1e-3), (FloatDType::BF16, 8e-3)] {
            for x in [-3.25, -3.0, 0.5, 147.0, 148.0, 1000.0] {
                let leaf = Tensor::<1>::from_data([x], &device).cast(dtype).autodiff().require_grad();
                let output = super::gelu_tanh(leaf.clone());
                let gradients = output.clone().sum().backward();
                let derivative = leaf.grad(&gradients).unwrap().into_scalar::<f64>();
                let (value, wanted) = (output.into_scalar::<f64>(), exact(x));
                assert!((value - wanted).abs() <= rounding * wanted.abs(), "{x}: {value} instead of {wanted}");
                let wanted = (exact(x + 1e-4) - exact(x - 1e-4)) / 2e-4;
                assert!((derivative - wanted).abs() <= rounding * wanted.abs().max(0.1), "{x}: {derivative}, {wanted}");
            }
        }
    }
}
