//! The last steps of every language model: the projection to the vocabulary, and the loss.

use burn::tensor::{Int, Tensor};
use stageline::Weight;
use stageline::nn::{Embedding, cross_entropy, unmasked};

use crate::families::initial::rows;

/// Projects normalised activations `[batch x length, width]` to logits `[batch, length, vocabulary]`. The third
/// argument is `[batch, length, width]`.
pub fn logits(output: &Embedding, normalised: Tensor<2>, [batch, length, _]: [usize; 3]) -> Tensor<3> {
    let logits = output.project(normalised);
    let [_, vocabulary] = logits.dims();
    logits.reshape([batch, length, vocabulary])
}

/// Returns the cross-entropy of the next tokens in nats, summed over all targets that are not masked out (-100), as a
/// tensor of one element. The logits are `[batch, length, vocabulary]`. The targets `[batch, length]` are already
/// shifted: each is the token that follows its position.
pub fn loss(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    cross_entropy(rows(logits), targets.flatten(0, 1))
}

/// Returns a loss's weight: its number of unmasked targets. A mean loss is the sum of losses divided by the sum of
/// weights.
pub fn weight(targets: &Tensor<2, Int>) -> Weight {
    unmasked(targets.clone().flatten(0, 1)).into()
}
