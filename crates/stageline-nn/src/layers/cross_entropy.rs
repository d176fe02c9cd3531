//! [`cross_entropy`]: the cross-entropy loss, summed over targets, as one operation if the backend has a kernel.

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, FloatDType, Int, Tensor};

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::engine::of_their_backend;
use crate::kernels::masked_targets::{is_masked, of_targets};

/// Returns the cross-entropy of logits `[rows, classes]` with the target class of each row, `[rows]`: the sum over all
/// rows in nats, `[1]`.
///
/// The result is the negative sum of burn's `log_softmax` at the targets. Logits in bf16 or f16 are cast to f32. If the
/// backend has a kernel, the loss is one operation of the autodiff graph. A row with the target
/// [`MASKED`](crate::MASKED) is ignored.
///
/// # Panics
/// Panics if the numbers of targets and rows differ, or, on the CPU, if a target is neither a class nor masked.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let ([rows, classes], [given]) = (logits.dims(), targets.dims());
    assert_eq!(rows, given, "there are {rows} rows of logits, and {given} targets");
    let logits = match logits.dtype() {
        DType::BF16 | DType::F16 => logits.cast(FloatDType::F32),
        _ => logits,
    };
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    if let Some(sum) = of_their_backend!(one::cross_entropy, &logits, &targets) {
        return sum;
    }
    // Masked rows get constant logits, because NaN in them would give NaN gradients.
    let logits = logits.mask_fill(is_masked(targets.clone()).expand([rows, classes]), 0.0);
    -of_targets(log_softmax(logits, 1), targets).sum()
}

/// Returns the number of targets that are not masked ([`MASKED`](crate::MASKED)): a micro-batch's loss weight, the
/// divisor of the loss sum that [`cross_entropy`] returns.
pub fn unmasked(targets: Tensor<1, Int>) -> usize {
    let masked = is_masked(targets.clone()).int().sum().into_scalar::<i64>();
    targets.dims()[0] - masked as usize
}

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
mod one {
    use std::marker::PhantomData;

    use burn::backend::Backend;
    use burn::backend::autodiff::checkpoint::base::Checkpointer;
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops};
    use burn::backend::tensor::{FloatTensor, IntTensor};
    use burn::tensor::{Int, Tensor};

    use crate::kernels::declared::name::CROSS_ENTROPY;
    use crate::kernels::{Kernels, indices, operation};

    /// The cross-entropy loss as a single operation in burn's autodiff graph.
    #[derive(Debug)]
    struct CrossEntropy;

    /// Values that the cross-entropy's forward pass saves for its backward pass.
    #[derive(Clone, Debug)]
    struct State<B: Backend> {
        logits: FloatTensor<B>,
        targets: IntTensor<B>,
        /// Second output of [`Kernels::cross_entropy`], from which the backward pass computes the softmax of the
        /// logits. On GPUs, the log-likelihoods of all classes. On CPUs, two values for each row: the largest logit,
        /// and 1 / sum of exp(logit - largest logit).
        kept: FloatTensor<B>,
    }

    impl<B: Kernels> Backward<B, 1> for CrossEntropy {
        type State = State<B>;

        fn backward(self, ops: Ops<State<B>, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<B>(&ops.node);
            let State { logits, targets, kept } = ops.state;
            if let [Some(parent)] = ops.parents {
                let to_logits = B::cross_entropy_to_logits(logits, &targets, &kept, &gradient);
                gradients.register::<B>(parent.id, to_logits);
            }
        }
    }

    /// Computes the cross-entropy loss with the backend's kernel; returns `None` if there is no kernel for the logits
    /// or their device.
    pub fn cross_entropy<B: Kernels>(
        _: PhantomData<B>,
        logits: &Tensor<2>,
        targets: &Tensor<1, Int>,
    ) -> Option<Tensor<1>> {
        let targets = indices::<B, 2, 1>(CROSS_ENTROPY, logits, targets)?;
        operation::<B, _, 1, 2, 1>(CROSS_ENTROPY, CrossEntropy, [logits], |[logits]| {
            let [sum, kept] = B::cross_entropy(&logits, &targets);
            (sum, State { logits, targets, kept })
        })
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;
    use crate::kernels::masked_targets::MASKED;
    use burn::tensor::{Device, IntDType, TensorData};

    use crate::test_numbers::uniform;

    #[test]
    fn loss_and_gradient_match_those_in_f64() {
        const ROWS: usize = 150;
        const CLASSES: usize = 37;
        let device = Device::flex();
        let logits = uniform([ROWS, CLASSES], -9.0..11.0, &device);
        let targets: Vec<_> = (0..ROWS).map(|row| (row * 7 % CLASSES) as i64).collect();
        let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [ROWS]), &device);
        let both = |logits: Tensor<2>| {
            let leaf = logits.autodiff().require_grad();
            let loss = cross_entropy(leaf.clone(), targets.clone().autodiff());
            let gradients = (loss.clone() * 0.3).backward();
            let gradient =
                leaf.grad(&gradients).unwrap().cast(FloatDType::F64).into_data().iter::<f64>().collect::<Vec<_>>();
            (loss.into_scalar::<f64>(), gradient)
        };
        // No kernel takes f64, so the exact values come from burn's own operations.
        let ((loss, gradient), (exact, exact_gradient)) =
            (both(logits.clone()), both(logits.clone().cast(FloatDType::F64)));
        let without_graph = cross_entropy(logits, targets.clone()).into_scalar::<f64>();
        assert_eq!(loss.to_bits(), without_graph.to_bits(), "a graph must not change the loss");
        assert_eq!(gradient.len(), exact_gradient.len());
        let apart = gradient
            .iter()
            .zip(&exact_gradient)
            .map(|(found, exact)| (found - exact).abs())
            .inspect(|apart| assert!(apart.is_finite()))
            .fold(0.0, f64::max);
        println!("the loss is off by {:.1e} of it, gradients by {apart:.1e}", (loss / exact - 1.0).abs());
        assert!((loss / exact - 1.0).abs() < 1e-6 && apart < 1e-6, "{loss} {exact} {apart}");
    }

    #[test]
    fn masked_rows_add_nothing_to_the_loss_and_have_no_gradient() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[0.3, -1.7, 2.5], [4.1, 0.9, 7.0], [1.2, 0.2, -0.6]], &device);
        let both = |logits: Tensor<2>, targets: &[i64]| {
            let targets = Tensor::<1, Int>::from_data(TensorData::new(targets.to_vec(), [targets.len()]), &device);
            let leaf = logits.autodiff().require_grad();
            let loss = cross_entropy(leaf.clone(), targets.autodiff());
            let gradients = loss.clone().backward();
            let gradient = leaf.grad(&gradients).unwrap().cast(FloatDType::F64).into_data();
            (loss.into_scalar::<f64>(), gradient.iter::<f64>().collect::<Vec<_>>())
        };
        // The kernels take f32, and burn's own operations f64.
        for dtype in [FloatDType::F32, FloatDType::F64] {
            let logits = logits.clone().cast(dtype);
            let broken = Tensor::<2>::from_floats([[f32::NAN, f32::INFINITY, 0.0]], &device).cast(dtype);
            let logits = logits.slice_assign([1..2, 0..3], broken);
            let (loss, gradient) = both(logits.clone(), &[2, MASKED, 0]);
            let others = logits.select(0, Tensor::from_ints([0, 2], &device));
            let (expected, gradient_of_others) = both(others, &[2, 0]);
            assert!((loss - expected).abs() < 1e-6 && expected > 0.1, "{loss} and not {expected}");
            assert_eq!(gradient[3..6], [0.0; 3]);
            for (found, expected) in gradient[..3].iter().chain(&gradient[6..]).zip(&gradient_of_others) {
                assert!((found - expected).abs() < 1e-6, "{found} and not {expected}");
            }
        }
    }

    #[test]
    fn unsigned_targets_are_classes_and_never_masked() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[0.3, -1.7, 2.5], [4.1, 0.2, -0.6]], &device);
        let signed = Tensor::<1, Int>::from_ints([2, 1], &device);
        for dtype in [FloatDType::F32, FloatDType::F64] {
            let logits = logits.clone().cast(dtype);
            let expected = cross_entropy(logits.clone(), signed.clone()).into_data();
            for kind in [IntDType::U8, IntDType::U32, IntDType::U64] {
                let targets = signed.clone().cast(kind);
                assert_eq!(cross_entropy(logits.clone(), targets.clone()).into_data(), expected);
                assert_eq!(unmasked(targets), 2);
            }
        }
        assert_eq!(unmasked(Tensor::from_ints([2, MASKED as i32, 1, MASKED as i32], &device)), 2);
    }

    #[test]
    fn logits_in_half_precision_give_the_loss_of_their_values_in_f32() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[0.3, -1.7, 2.5], [4.1, 0.2, -0.6]], &device);
        let targets = Tensor::from_ints([2, 1], &device);
        for dtype in [FloatDType::BF16, FloatDType::F16] {
            let half = logits.clone().cast(dtype);
            let loss = cross_entropy(half.clone(), targets.clone());
            assert_eq!(loss.dtype(), DType::F32);
            assert_eq!(loss.into_data(), cross_entropy(half.cast(FloatDType::F32), targets.clone()).into_data());
        }
    }

    #[test]
    fn non_finite_logits_give_a_non_finite_loss() {
        let device = Device::flex();
        let loss = |logit: f32| {
            let logits = Tensor::<2>::from_floats([[0.0, logit]], &device);
            cross_entropy(logits, Tensor::from_ints([0], &device)).into_scalar::<f32>()
        };
        assert!(loss(f32::NAN).is_nan() && !loss(f32::INFINITY).is_finite());
    }

    #[test]
    #[should_panic = "target 2 is not one of the 2 classes"]
    fn a_target_outside_the_classes_is_rejected() {
        let device = Device::flex();
        cross_entropy(Tensor::ones([1, 2], &device), Tensor::from_ints([2], &device));
    }
}
