//! The residual connections of a transformer block, which all families share.

use burn::tensor::Tensor;

use crate::families::initial::rows;

/// Returns the output of a transformer block for activations `[batch, length, width]`. Adds the output of attention to
/// the input, and then the output of the feed-forward part to the sum.
///
/// The functions `attend` and `feed_forward` get activations `[batch x length, width]` that are not normalised yet. The
/// second argument of `attend` is the array of the sizes batch, length and width.
pub fn with_residuals(
    input: Tensor<3>,
    attend: impl FnOnce(Tensor<2>, [usize; 3]) -> Tensor<2>,
    feed_forward: impl FnOnce(Tensor<2>) -> Tensor<2>,
) -> Tensor<3> {
    let dims = input.dims();
    let input = rows(input);
    let attended = input.clone() + attend(input, dims);
    (attended.clone() + feed_forward(attended)).reshape(dims)
}
