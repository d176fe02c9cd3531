//! Causal attention on the CPU, computed in blocks of queries that skip later keys.

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;
use rayon::prelude::*;

use super::matrix::{Matrix, MatrixMut};
use super::numbers::numbers;
use super::wide::{exp_from_below, sum, wide};
use crate::kernels::attention_blocks::{QUERIES, blocks, scale, weights_of_a_head};

/// The sizes of attention's input `[batch, length, 3 x heads x size]`, from which the positions of queries, keys and
/// values in the input follow.
#[derive(Clone, Copy)]
struct Sizes {
    length: usize,
    heads: usize,
    /// The number of elements in a query, key or value of one attention head.
    size: usize,
}

/// The queries, keys and values of one attention head of one sample, each `[length, size]`.
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

    /// Returns the number of elements in the queries of all attention heads at one position of a sequence.
    fn width(self) -> usize {
        self.heads * self.size
    }

    /// Returns the number of elements of attention's input for one sample, which is also the number in the input's
    /// gradient.
    fn sample(self) -> usize {
        self.length * 3 * self.width()
    }

    /// Returns the queries, keys and values of one attention head from the input of a sample.
    fn head(self, sample: &[f32], head: usize) -> Head<Matrix<'_>> {
        let part = |part: usize| self.columns(&sample[part * self.width()..], 3 * self.width(), head);
        Head { query: part(0), key: part(1), value: part(2) }
    }

    /// Returns the columns of one attention head, `[length, size]`, as a view into numbers of shape `[length, width]`
    /// whose rows are `stride` numbers apart.
    fn columns(self, values: &[f32], stride: usize, head: usize) -> Matrix<'_> {
        Matrix::new(&values[head * self.size..], [self.length, self.size], stride)
    }
}

/// Computes causal attention of a contiguous input, and returns the output and the attention weights of every head of
/// every sample. The weights of a head are kept block by block of queries, each block `[queries, keys]`.
pub fn attended(input: &FloatTensor<Flex>, heads: usize) -> (FloatTensor<Flex>, Vec<Vec<f32>>) {
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

/// Computes the attention of one head into `output`, and returns the attention weights of the head, block by block of
/// queries.
fn attend(sizes: Sizes, Head { query, key, value }: &Head<Matrix>, mut output: MatrixMut) -> Vec<f32> {
    let mut weights = Vec::with_capacity(weights_of_a_head(sizes.length));
    for (start, end) in blocks(sizes.length) {
        let before = weights.len();
        query.rows(start..end).append_product(key.rows(0..end).transposed(), &mut weights);
        let block = &mut weights[before..];
        to_weights(block, start, end, scale(sizes.size) as f32);
        output.rows(start..end).set_product(Matrix::new(block, [end - start, end], end), value.rows(0..end));
    }
    weights
}

/// Returns the gradient of attention's input, given the attention weights that [`attended`] returned and the gradient
/// of the output (`upstream`). All tensors must be contiguous.
pub fn to_input(
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

/// Computes the gradients of one attention head's queries, keys and values into `gradients`. The gradients of keys and
/// values are added up, so `gradients` must begin as zeros.
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
        to_unscaled_scores(to_scores, block, start, end, scale(sizes.size) as f32);
        let to_scores = Matrix::new(to_scores, shape, end);
        gradients.query.rows(start..end).set_product(to_scores, key.rows(0..end));
        gradients.key.rows(0..end).add_product(to_scores.transposed(), query.rows(start..end));
        weights = rest;
    }
}

wide! {
    // Turns scores of queries with `keys` keys into attention weights: a softmax over the keys up to the query, and 0
    // behind it. `first` is the position of the first query.
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
    // Turns the gradients of attention weights into those of the scores before scaling; keys behind the query get 0.
    // `first` is the position of the first query.
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
