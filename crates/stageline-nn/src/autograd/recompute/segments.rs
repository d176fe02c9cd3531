//! Runs a sequence of blocks of a model (such as transformer layers), which the backward pass may recompute one by one
//! or in segments of several blocks.

use burn::module::Module;
use burn::tensor::Tensor;

use super::policy::SequenceParts;
use super::recomputed;

/// Runs a sequence of blocks, such as the layers of a transformer, and returns the output of the last one. Each block
/// is marked for recomputation (see [`block`](super::block)). [`Recompute::Segments`](super::Recompute::Segments) and
/// [`Recompute::SquareRoot`](super::Recompute::SquareRoot) recompute segments of consecutive blocks in the backward
/// pass, and retain only the input of each segment.
///
/// `forward` computes one block from its module and its input. It must use no other parameters, as with
/// [`block`](super::block).
pub fn sequence<B: Module + 'static, const D: usize>(
    blocks: &[B],
    input: Tensor<D>,
    forward: impl Fn(&B, Tensor<D>) -> Tensor<D> + Clone + Send + 'static,
) -> Tensor<D> {
    let all = move |blocks: &[B], input: Tensor<D>| blocks.iter().fold(input, |input, block| forward(block, input));
    let Some(parts) = SequenceParts::of(blocks.len()) else { return all(blocks, input) };
    parts.run(blocks, input, all.clone(), |part, input| {
        let all = all.clone();
        recomputed(&part.to_vec(), input, move |part, input| all(part, input))
    })
}
