//! What positions take from those before them.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Tensor};

#[cfg(any(feature = "flex", feature = "remote"))]
use super::kernels::of_their_kernels;

/// Causal self-attention (Vaswani et al., 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762)) with so many heads:
/// `[batch, length, 3 x width]`, the queries, keys and values of all heads one behind the other, to `[batch, length, width]`.
///
/// In f32 on the host it is one operation that leaves what comes later out, where burn's have to move heads about and to compute
/// all of it. It keeps its input and the weights of attention for its backward.
///
/// # Panics
/// If the last dimension is not 3 times a multiple of `heads`.
pub fn causal_attention(query_key_value: Tensor<3>, heads: usize) -> Tensor<3> {
    let [batch, length, columns] = query_key_value.dims();
    assert!(
        heads > 0 && columns.is_multiple_of(3 * heads) && columns > 0,
        "{columns} columns are not the queries, keys and values of {heads} heads"
    );
    #[cfg(any(feature = "flex", feature = "remote"))]
    if let Some(output) = of_their_kernels!(one::causal_attention, &query_key_value, heads) {
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

fn scale(size: usize) -> f64 {
    1.0 / (size as f64).sqrt()
}

/// So many queries at a time: none of them has scores with keys after the last.
#[cfg(any(feature = "flex", feature = "remote"))]
const QUERIES: usize = 64;

/// Where blocks of queries begin and end.
#[cfg(any(feature = "flex", feature = "remote"))]
fn blocks(length: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(QUERIES).map(move |start| (start, (start + QUERIES).min(length)))
}

/// How many weights the kernel keeps of a head.
#[cfg(any(feature = "flex", feature = "remote"))]
pub(crate) fn weights_of_a_head(length: usize) -> usize {
    blocks(length).map(|(start, end)| (end - start) * end).sum()
}

#[cfg(any(feature = "flex", feature = "remote"))]
mod one {
    use std::marker::PhantomData;

    use burn::backend::autodiff::checkpoint::base::Checkpointer;
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops};
    use burn::backend::tensor::FloatTensor;
    use burn::tensor::Tensor;

    use super::super::kernels::{Kernels, operation};

    #[derive(Debug)]
    struct CausalAttention;

    #[derive(Clone, Debug)]
    struct State<B: Kernels> {
        /// `[batch, length, 3 x width]`.
        input: FloatTensor<B>,
        heads: usize,
        weights: B::Weights,
    }

    impl<B: Kernels> Backward<B, 1> for CausalAttention {
        type State = State<B>;

        fn backward(self, ops: Ops<State<B>, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<B>(&ops.node);
            let State { input, heads, weights } = ops.state;
            if let [Some(parent)] = ops.parents {
                let to_input = B::causal_attention_to_input(&input, heads, &weights, &gradient);
                gradients.register::<B>(parent.id, to_input);
            }
        }
    }

    pub(super) fn causal_attention<B: Kernels>(
        _: PhantomData<B>,
        input: &Tensor<3>,
        heads: usize,
    ) -> Option<Tensor<3>> {
        operation::<B, _, 3, 3>(CausalAttention, input, |input| {
            let (output, weights) = B::causal_attention(&input, heads);
            (output, State { input, heads, weights })
        })
    }
}

#[cfg(feature = "flex")]
pub(crate) mod host {
    use burn::backend::Flex;
    use burn::backend::TensorMetadata;
    use burn::backend::tensor::FloatTensor;
    use burn::tensor::TensorData;
    use rayon::prelude::*;

    use super::super::kernels::numbers;
    use super::super::matrix::{Matrix, MatrixMut};
    use super::super::wide::{exp_from_below, sum, wide};
    use super::{QUERIES, blocks, weights_of_a_head};

    /// The sizes of an input, and where its parts are.
    #[derive(Clone, Copy)]
    struct Sizes {
        length: usize,
        heads: usize,
        /// Of a query.
        size: usize,
    }

    /// Queries, keys and values of one head, each `[length, size]`.
    struct Head<T> {
        query: T,
        key: T,
        value: T,
    }

    impl Sizes {
        fn of(input: &FloatTensor<Flex>, heads: usize) -> Self {
            let shape = input.shape();
            Self { length: shape[1], heads, size: shape[2] / (3 * heads) }
        }

        fn width(self) -> usize {
            self.heads * self.size
        }

        /// Of one sample's input, or its gradient.
        fn sample(self) -> usize {
            self.length * 3 * self.width()
        }

        /// One head of a sample.
        fn head(self, sample: &[f32], head: usize) -> Head<Matrix<'_>> {
            let part = |part: usize| self.columns(&sample[part * self.width()..], 3 * self.width(), head);
            Head { query: part(0), key: part(1), value: part(2) }
        }

        /// The columns of one head of `[length, width]` in rows of `stride` numbers.
        fn columns(self, values: &[f32], stride: usize, head: usize) -> Matrix<'_> {
            Matrix::new(&values[head * self.size..], [self.length, self.size], stride)
        }
    }

    /// Of a contiguous input: the output, and the weights.
    pub(crate) fn attended(input: &FloatTensor<Flex>, heads: usize) -> (FloatTensor<Flex>, Vec<Vec<f32>>) {
        let sizes = Sizes::of(input, heads);
        let (values, shape) = (numbers(input), input.shape());
        let samples = shape[0];
        let mut output = vec![0.0; samples * sizes.length * sizes.width()];
        let mut weights = Vec::new();
        if !output.is_empty() {
            let outputs = output.chunks_exact_mut(sizes.length * sizes.width());
            let outputs = outputs.flat_map(|output| MatrixMut::side_by_side(output, sizes.width(), sizes.size));
            let heads_of =
                values.chunks_exact(sizes.sample()).flat_map(|sample| (0..heads).map(move |head| (sample, head)));
            let jobs: Vec<_> = outputs.zip(heads_of).collect();
            let attend = |(output, (sample, head))| attend(sizes, &sizes.head(sample, head), output);
            weights = jobs.into_par_iter().map(attend).collect();
        }
        let output = TensorData::new(output, [samples, sizes.length, sizes.width()]);
        (FloatTensor::<Flex>::from_data(output), weights)
    }

    /// Gives the weights.
    fn attend(sizes: Sizes, Head { query, key, value }: &Head<Matrix>, mut output: MatrixMut) -> Vec<f32> {
        let mut weights = Vec::with_capacity(weights_of_a_head(sizes.length));
        for (start, end) in blocks(sizes.length) {
            let before = weights.len();
            query.rows(start..end).append_product(key.rows(0..end).transposed(), &mut weights);
            let block = &mut weights[before..];
            to_weights(block, start, end, super::scale(sizes.size) as f32);
            output.rows(start..end).set_product(Matrix::new(block, [end - start, end], end), value.rows(0..end));
        }
        weights
    }

    pub(crate) fn to_input(
        input: &FloatTensor<Flex>,
        heads: usize,
        weights: &[impl AsRef<[f32]> + Sync],
        upstream: &FloatTensor<Flex>,
    ) -> FloatTensor<Flex> {
        let sizes = Sizes::of(input, heads);
        let (values, upstream) = (numbers(input), numbers(upstream));
        let mut output = vec![0.0; values.len()];
        if !output.is_empty() {
            let gradients = output.chunks_exact_mut(sizes.sample()).flat_map(|sample| {
                let mut parts = MatrixMut::side_by_side(sample, 3 * sizes.width(), sizes.size).collect::<Vec<_>>();
                let values = parts.split_off(2 * heads);
                let keys = parts.split_off(heads);
                parts.into_iter().zip(keys).zip(values).map(|((query, key), value)| Head { query, key, value })
            });
            let samples = values.chunks_exact(sizes.sample()).zip(upstream.chunks_exact(sizes.length * sizes.width()));
            let heads_of = samples.flat_map(|sample| (0..heads).map(move |head| (sample, head)));
            let jobs: Vec<_> = gradients.zip(weights).zip(heads_of).collect();
            jobs.into_par_iter().for_each(|((gradients, weights), ((sample, upstream), head))| {
                let upstream = sizes.columns(upstream, sizes.width(), head);
                to_head(sizes, &sizes.head(sample, head), (weights.as_ref(), upstream), gradients);
            });
        }
        FloatTensor::<Flex>::from_data(TensorData::new(output, input.shape()))
    }

    /// Adds to the gradients of one head.
    fn to_head(
        sizes: Sizes,
        Head { query, key, value }: &Head<Matrix>,
        (mut weights, upstream): (&[f32], Matrix),
        mut gradients: Head<MatrixMut>,
    ) {
        let mut scratch = vec![0.0; QUERIES.min(sizes.length) * sizes.length];
        for (start, end) in blocks(sizes.length) {
            let shape = [end - start, end];
            let (block, rest) = weights.split_at(shape[0] * shape[1]);
            let upstream = upstream.rows(start..end);
            gradients.value.rows(0..end).add_product(Matrix::new(block, shape, end).transposed(), upstream);
            let to_scores = &mut scratch[..block.len()];
            MatrixMut::whole(to_scores, shape).set_product(upstream, value.rows(0..end).transposed());
            to_unscaled_scores(to_scores, block, start, end, super::scale(sizes.size) as f32);
            let to_scores = Matrix::new(to_scores, shape, end);
            gradients.query.rows(start..end).set_product(to_scores, key.rows(0..end));
            gradients.key.rows(0..end).add_product(to_scores.transposed(), query.rows(start..end));
            weights = rest;
        }
    }

    wide! {
        fn to_weights(scores: &mut [f32], first: usize, keys: usize, scale: f32) {
            for (query, row) in scores.chunks_exact_mut(keys).enumerate() {
                let (past, future) = row.split_at_mut(first + query + 1);
                future.fill(0.0);
                let most = past.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                past.iter_mut().for_each(|score| *score = exp_from_below((*score - most) * scale));
                let share = 1.0 / sum(past, |_, weight| weight);
                past.iter_mut().for_each(|weight| *weight *= share);
            }
        }
    }

    wide! {
        fn to_unscaled_scores(gradients: &mut [f32], weights: &[f32], first: usize, keys: usize, scale: f32) {
            for (query, (gradients, weights)) in gradients.chunks_exact_mut(keys).zip(weights.chunks_exact(keys)).enumerate() {
                let (past, future) = gradients.split_at_mut(first + query + 1);
                future.fill(0.0);
                let weights = &weights[..past.len()];
                let mean = sum(past, |at, gradient| gradient * weights[at]);
                past.iter_mut().zip(weights).for_each(|(gradient, weight)| *gradient = scale * weight * (*gradient - mean));
            }
        }
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

    /// Output and gradient of an input, as `attention` gives them.
    fn both(attention: impl Fn(Tensor<3>) -> Tensor<3>, input: &Tensor<3>, upstream: &Tensor<3>) -> [Vec<f64>; 2] {
        let leaf = input.clone().autodiff().require_grad();
        let output = attention(leaf.clone());
        let gradients = (output.clone() * upstream.clone().autodiff()).sum().backward();
        [numbers(output.inner()), numbers(leaf.grad(&gradients).unwrap())]
    }

    #[test]
    fn output_and_gradient_are_those_of_f64() {
        let device = Device::flex();
        // Less than a block of queries, just one, and more.
        for length in [1, 37, 64, 131] {
            let random = |columns: usize, bound: f64| {
                Tensor::<3>::random([2, length, columns * HEADS * SIZE], Distribution::Uniform(-bound, bound), &device)
            };
            let (input, upstream) = (random(3, 2.5), random(1, 2.0));
            let [output, gradient] = both(|input| causal_attention(input, HEADS), &input, &upstream);
            assert_eq!(
                numbers(causal_attention(input.clone(), HEADS)),
                output,
                "the same kernels, with a graph or without"
            );
            // In f64 it is burn's own operations.
            let exactly = |tensor: &Tensor<3>| tensor.clone().cast(FloatDType::F64);
            let exact = both(|input| causal_attention(input, HEADS), &exactly(&input), &exactly(&upstream));
            let apart = |found: &[f64], exact: &[f64]| {
                assert_eq!(found.len(), exact.len());
                found.iter().zip(exact).map(|(found, exact)| (found - exact).abs()).fold(0.0, f64::max)
            };
            let off = [apart(&output, &exact[0]), apart(&gradient, &exact[1])];
            println!("{length}: outputs are off by {:.1e}, gradients by {:.1e}", off[0], off[1]);
            // Scores are within 14, so they are off by 5e-6 at most, and weights by twice that of themselves.
            assert!(off[0] < 2e-5 && off[1] < 1e-4, "{length}: {off:?}");
        }
    }

    #[test]
    fn later_values_count_for_nothing_and_what_is_not_finite_is_seen() {
        let device = Device::flex();
        let of = |last: f32| {
            let values = [1.0, 2.0, 3.0, last, last, last];
            let input = Tensor::<1>::from_floats(values, &device).reshape([1, 2, 3]);
            numbers(causal_attention(input, 1))
        };
        assert_eq!((of(0.5)[0], of(500.0)[0]), (3.0, 3.0));
        assert!(of(f32::NAN)[1].is_nan());
    }

    #[test]
    fn nothing_attends_to_nothing() {
        let nothing = Tensor::<3>::zeros([0, 4, 6], &Device::flex());
        assert_eq!(causal_attention(nothing, 2).dims(), [0, 4, 2]);
    }

    #[test]
    #[should_panic = "8 columns are not the queries, keys and values of 2 heads"]
    fn columns_that_are_no_heads_are_refused() {
        causal_attention(Tensor::zeros([1, 2, 8], &Device::flex()), 2);
    }
}
