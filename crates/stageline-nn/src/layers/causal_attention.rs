//! [`causal_attention`]: causal self-attention over the queries, keys and values of all heads, as one operation if the
//! backend has a kernel.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Tensor};

#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
use crate::autograd::engine::of_their_backend;
use crate::forward::flops::report_flops;
use crate::kernels::attention_blocks::scale;

/// Computes causal self-attention with `heads` heads: each position attends to itself and the positions before it
/// (Vaswani et al., 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762)).
///
/// The input is `[batch, length, 3 x width]`: the queries of all heads, then their keys, then their values. The output
/// is `[batch, length, width]`.
///
/// In f32 on the host, attention is one operation that skips the scores of later positions; burn's operations rearrange
/// the heads and compute all scores. The input and the attention weights are kept for the backward.
///
/// # Panics
/// Panics if the last dimension is not 3 times a positive multiple of `heads`.
pub fn causal_attention(query_key_value: Tensor<3>, heads: usize) -> Tensor<3> {
    let [batch, length, columns] = query_key_value.dims();
    assert!(
        heads > 0 && columns.is_multiple_of(3 * heads) && columns > 0,
        "{columns} columns do not divide into the queries, keys and values of {heads} heads"
    );
    if batch * length == 0 {
        return query_key_value.slice_dim(2, 0..columns / 3);
    }
    // The products of queries and keys, and of weights and values. Scores of later positions count as well, as is usual.
    report_flops(4.0 * (batch * length * length) as f64 * (columns / 3) as f64);
    #[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
    if let Some(output) = of_their_backend!(one::causal_attention, &query_key_value, heads) {
        return output;
    }
    let size = columns / (3 * heads);
    let split = query_key_value.reshape([batch, length, 3 * heads, size]).swap_dims(1, 2);
    let part = |index: usize| split.clone().slice_dim(1, index * heads..(index + 1) * heads);
    let (query, key, value) = (part(0), part(1), part(2));
    let scores = query.matmul(key.swap_dims(2, 3)) * scale(size);
    let future = Tensor::<2, Bool>::tril_mask([length, length], 0, &scores.device()).unsqueeze();
    let weights = softmax(scores.mask_fill(future, f32::NEG_INFINITY), 3);
    weights.matmul(value).swap_dims(1, 2).reshape([batch, length, heads * size])
}

#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
mod one {
    use std::marker::PhantomData;

    use burn::backend::autodiff::checkpoint::base::Checkpointer;
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops};
    use burn::tensor::Tensor;

    use crate::kernels::{Kernels, operation};

    /// The operation that stands for causal attention in burn's autodiff graph.
    #[derive(Debug)]
    struct CausalAttention;

    /// The values of the forward of causal attention that its backward needs.
    #[derive(Clone, Debug)]
    struct State<B: Kernels> {
        attended: B::Attended,
        heads: usize,
    }

    impl<B: Kernels> Backward<B, 1> for CausalAttention {
        type State = State<B>;

        fn backward(self, ops: Ops<State<B>, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<B>(&ops.node);
            let State { attended, heads } = ops.state;
            if let [Some(parent)] = ops.parents {
                let to_input = B::causal_attention_to_input(&attended, heads, &gradient);
                gradients.register::<B>(parent.id, to_input);
            }
        }
    }

    /// Computes causal attention by the backend's kernel; returns `None` if there is no kernel for the tensor or its
    /// device.
    pub fn causal_attention<B: Kernels>(_: PhantomData<B>, input: &Tensor<3>, heads: usize) -> Option<Tensor<3>> {
        operation::<B, _, 3, 3>(CausalAttention, input, |input| {
            let (output, attended) = B::causal_attention(&input, heads);
            (output, State { attended, heads })
        })
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;
    use burn::tensor::{Device, Distribution, FloatDType};

    const HEADS: usize = 3;
    const SIZE: usize = 5;

    fn numbers(tensor: Tensor<3>) -> Vec<f64> {
        tensor.cast(FloatDType::F64).into_data().iter::<f64>().collect()
    }

    /// Returns the output of the function `attention` and the gradient of its input.
    fn both(attention: impl Fn(Tensor<3>) -> Tensor<3>, input: &Tensor<3>, upstream: &Tensor<3>) -> [Vec<f64>; 2] {
        let leaf = input.clone().autodiff().require_grad();
        let output = attention(leaf.clone());
        let gradients = (output.clone() * upstream.clone().autodiff()).sum().backward();
        [numbers(output.inner()), numbers(leaf.grad(&gradients).unwrap())]
    }

    #[test]
    fn output_and_gradient_match_those_in_f64() {
        let device = Device::flex();
        // The lengths are less than a block of queries, one block, and more than one block.
        for length in [1, 37, 64, 131] {
            let random = |columns: usize, bound: f64| {
                Tensor::<3>::random([2, length, columns * HEADS * SIZE], Distribution::Uniform(-bound, bound), &device)
            };
            let (input, upstream) = (random(3, 2.5), random(1, 2.0));
            let [output, gradient] = both(|input| causal_attention(input, HEADS), &input, &upstream);
            assert_eq!(numbers(causal_attention(input.clone(), HEADS)), output, "a graph must not change the result");
            // No kernel takes f64, so the exact values come from burn's own operations.
            let exactly = |tensor: &Tensor<3>| tensor.clone().cast(FloatDType::F64);
            let exact = both(|input| causal_attention(input, HEADS), &exactly(&input), &exactly(&upstream));
            let apart = |found: &[f64], exact: &[f64]| {
                assert_eq!(found.len(), exact.len());
                found.iter().zip(exact).map(|(found, exact)| (found - exact).abs()).fold(0.0, f64::max)
            };
            let off = [apart(&output, &exact[0]), apart(&gradient, &exact[1])];
            println!("{length}: outputs are off by {:.1e}, gradients by {:.1e}", off[0], off[1]);
            // The scores are at most 14, so their error is at most 5e-6 and the relative error of the weights twice
            // that.
            assert!(off[0] < 2e-5 && off[1] < 1e-4, "{length}: {off:?}");
        }
    }

    #[test]
    fn later_positions_are_masked_and_nan_propagates() {
        let device = Device::flex();
        let attend = |last: f32| {
            let values = [1.0, 2.0, 3.0, last, last, last];
            let input = Tensor::<1>::from_floats(values, &device).reshape([1, 2, 3]);
            numbers(causal_attention(input, 1))
        };
        assert_eq!((attend(0.5)[0], attend(500.0)[0]), (3.0, 3.0));
        assert!(attend(f32::NAN)[1].is_nan());
    }

    #[test]
    fn an_empty_batch_gives_an_empty_output() {
        let nothing = Tensor::<3>::zeros([0, 4, 6], &Device::flex());
        assert_eq!(causal_attention(nothing, 2).dims(), [0, 4, 2]);
    }

    #[test]
    #[should_panic = "8 columns do not divide into the queries, keys and values of 2 heads"]
    fn columns_that_do_not_divide_into_heads_are_rejected() {
        causal_attention(Tensor::zeros([1, 2, 8], &Device::flex()), 2);
    }
}
