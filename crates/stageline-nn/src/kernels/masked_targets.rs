//! Masked targets of the cross-entropy ([`MASKED`]), which the loss ignores, and functions that apply the mask with
//! burn's own operations on every backend.

use burn::tensor::{Bool, DType, Int, Tensor};

/// The target that excludes a row of logits from the loss of [`cross_entropy`](fn@crate::cross_entropy): the row adds
/// nothing to the loss, and its logits have the gradient 0. It equals the default of PyTorch's `ignore_index`.
pub const MASKED: i64 = -100;

/// Returns the log-likelihood of each row's target, `[rows, 1]`, and 0 for masked targets. `likelihoods` are the
/// log-likelihoods of all classes, `[rows, classes]`.
pub fn of_targets(likelihoods: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<2> {
    let masked = is_masked(targets.clone());
    let classes = targets.unsqueeze_dim::<2>(1).mask_fill(masked.clone(), 0);
    likelihoods.gather(1, classes).mask_fill(masked, 0.0)
}

/// Returns a mask `[rows, 1]` that is true in each row whose target is [`MASKED`]. Unsigned targets are never masked.
pub fn is_masked(targets: Tensor<1, Int>) -> Tensor<2, Bool> {
    let targets = targets.unsqueeze_dim::<2>(1);
    match targets.dtype() {
        // Unsigned dtypes cannot hold -100, and burn panics at a comparison with it. This mask is false everywhere.
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => targets.clone().not_equal(targets),
        _ => targets.equal_elem(MASKED),
    }
}
