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

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::num::NonZero;

    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;
    use crate::autograd::recompute::{BlockSet, Recompute, block};

    /// Tests blocks that mark themselves, behind frozen embeddings: the first block has an input outside the graph, so
    /// it cannot be recomputed. It counts as one block all the same.
    #[test]
    fn a_block_that_cannot_be_recomputed_counts_once() {
        let device = Device::flex().autodiff();
        let blocks: Vec<Linear> = (0..5).map(|_| LinearConfig::new(3, 3).init(&device)).collect();
        let recomputed = |recompute: Recompute| {
            let marked = |layer: &Linear, input| block(layer, input, |layer: &Linear, input| layer.forward(input));
            let run = || sequence(&blocks, Tensor::<2>::ones([2, 3], &device), marked);
            recompute.counting(run).1.recomputed
        };
        assert_eq!(recomputed(Recompute::Full), 4);
        assert_eq!(recomputed(Recompute::Blocks(3)), 2);
        assert_eq!(recomputed(Recompute::EveryNth(NonZero::new(2).unwrap())), 2);
        assert_eq!(recomputed(Recompute::Only(BlockSet::new([0, 1]).unwrap())), 1);
        assert_eq!(recomputed(Recompute::Only(BlockSet::new([0, 2, 4]).unwrap())), 2);
    }
}
