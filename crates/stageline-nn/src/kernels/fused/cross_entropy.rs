//! Computes the cross-entropy loss and its gradient on GPUs, with burn's own operations, which burn fuses into few
//! kernels.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

use super::table::is_at;
use super::{as_given, wide};
use crate::kernels::masked_targets::{is_masked, of_targets};

/// Returns the cross-entropy of logits `[rows, classes]`, summed over the rows to `[1]`, and the log-likelihoods of all
/// classes, `[rows, classes]`.
pub(crate) fn summed(logits: Tensor<2>, targets: Tensor<1, Int>) -> (Tensor<1>, Tensor<2>) {
    let likelihoods = log_softmax(wide(logits), 1);
    (-of_targets(likelihoods.clone(), targets).sum(), likelihoods)
}

/// Returns the gradient of the loss with respect to the logits of a cross-entropy, `[rows, classes]`. `gradient` is the
/// gradient with respect to the cross-entropy, which is summed over the rows. `likelihoods` are the log-likelihoods of
/// all classes, as [`summed`] returned them.
pub(crate) fn to_logits(
    logits: &Tensor<2>,
    likelihoods: Tensor<2>,
    targets: Tensor<1, Int>,
    gradient: Tensor<1>,
) -> Tensor<2> {
    let shape = likelihoods.dims();
    let masked = is_masked(targets.clone()).expand(shape);
    let is_target = as_given(is_at(targets, shape[1]), &likelihoods);
    as_given(((likelihoods.exp() - is_target) * wide(gradient).unsqueeze()).mask_fill(masked, 0.0), logits)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::{Device, IntDType, TensorData};

    use super::super::checks::{derived, in_all, near, random};
    use super::*;
    use crate::kernels::masked_targets::MASKED;

    #[test]
    fn cross_entropy_matches_f64() {
        let (logits, upstream) = (random([20, 9]), random([1]));
        let targets: Vec<_> = (0..20_i64).map(|row| if row % 6 == 4 { MASKED } else { row * 5 % 9 }).collect();
        let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [20]), &Device::flex());
        let targets = targets.cast(IntDType::I64);
        in_all(&logits, |logits, bound| {
            let (sum, gradient) =
                derived(|logits| crate::layers::cross_entropy(logits, targets.clone().autodiff()), &logits, &upstream);
            let (found, likelihoods) = summed(logits.clone(), targets.clone());
            near(found, &sum, 1e-5);
            near(to_logits(&logits, likelihoods, targets.clone(), upstream.clone()), &gradient, bound);
        });
    }
}
