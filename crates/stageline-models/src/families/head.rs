//! The end of every language model: the projection to the vocabulary, and the loss.

use burn::tensor::{Int, Tensor};
use stageline::Weight;
use stageline::nn::{Embedding, cross_entropy, unmasked};

use crate::families::initial::rows;

/// Returns the logits `[batch, length, vocabulary]` for activations `[batch x length, width]` that are already
/// normalised. The third argument is the array of the sizes batch, length and width.
pub fn logits(output: &Embedding, normalised: Tensor<2>, [batch, length, _]: [usize; 3]) -> Tensor<3> {
    let logits = output.project(normalised);
    let [_, vocabulary] = logits.dims();
    logits.reshape([batch, length, vocabulary])
}

/// Returns the cross-entropy of the next tokens in nats, summed over all targets that are not masked (-100), as a
/// tensor of one element. The logits are `[batch, length, vocabulary]`. The targets `[batch, length]` contain the token
/// that follows each position, so they are not shifted here.
pub fn loss(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    cross_entropy(rows(logits), targets.flatten(0, 1))
}

/// Returns the weight of a loss: the number of targets that are not masked. A mean loss is a sum of losses divided
/// by the sum of their weights.
pub fn weight(targets: &Tensor<2, Int>) -> Weight {
    unmasked(targets.clone().flatten(0, 1)).into()
}
