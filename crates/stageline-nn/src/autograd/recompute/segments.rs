//! A sequence of blocks, which may be recomputed in segments of several blocks.

use burn::module::Module;
use burn::tensor::Tensor;

use super::policy::segment_length;
use super::recomputed;

/// Runs a sequence of blocks, such as the layers of a transformer, and returns the output of the last one.
/// [`Recompute::Segments`](super::Recompute::Segments) and [`Recompute::SquareRoot`](super::Recompute::SquareRoot)
/// recompute segments of consecutive blocks in the backward, and keep only the input of each segment.
///
/// `forward` computes one block from its module and its input. It has the restrictions of [`block`](super::block).
pub fn sequence<B: Module + 'static, const D: usize>(
    blocks: &[B],
    input: Tensor<D>,
    forward: impl Fn(&B, Tensor<D>) -> Tensor<D> + Clone + Send + 'static,
) -> Tensor<D> {
    let Some(length) = segment_length(blocks.len()) else {
        return blocks.iter().fold(input, |input, block| forward(block, input));
    };
    blocks.chunks(length).fold(input, |input, segment| {
        let forward = forward.clone();
        recomputed(&segment.to_vec(), input, move |segment, input| {
            segment.iter().fold(input, |input, block| forward(block, input))
        })
    })
}
