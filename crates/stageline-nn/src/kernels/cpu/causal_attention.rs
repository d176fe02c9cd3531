//! Computes causal attention on the CPU, in blocks of queries. Each block skips later keys and keys before the sliding
//! window.

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use rayon::prelude::*;

use super::matrix::{Matrix, MatrixMut};
use super::numbers::{integers, numbers, of_numbers};
use super::wide::{exp_from_below, largest, sum, wide};
use crate::kernels::attention_blocks::{AttentionHeads, Block, QUERIES, blocks, scale, weights_of_a_head};

/// Memory layout of attention's packed input `[batch, length, (query heads + 2 x key-value heads) x size]`, from which
/// the kernel finds each head's queries, keys and values.
#[derive(Clone, Copy)]
struct Sizes {
    length: usize,
    heads: AttentionHeads,
    /// Head dimension: number of elements in a query, key or value of one attention head.
    size: usize,
}

/// Queries, keys and values of one query head in one sample, each `[length, size]`.
struct Head<T> {
    query: T,
    key: T,
    value: T,
}

/// Gradients of one key-value head's keys and values, and of the queries of all query heads that share it, each
/// `[length, size]`.
struct Group<'a> {
    queries: Vec<MatrixMut<'a>>,
    key: MatrixMut<'a>,
    value: MatrixMut<'a>,
}

impl Sizes {
    fn of(input: &FloatTensor<Flex>, heads: AttentionHeads) -> Self {
        let shape = input.shape();
        Self { length: shape[1], heads, size: shape[2] / heads.columns() }
    }

    /// Returns the number of columns of attention's output: the query elements of all query heads at one position.
    fn width(self) -> usize {
        self.heads.query * self.size
    }

    /// Returns the number of columns of attention's input: all queries, keys and values at one position.
    fn stride(self) -> usize {
        self.heads.columns() * self.size
    }

    /// Returns the number of elements of one sample in attention's input.
    fn sample(self) -> usize {
        self.length * self.stride()
    }

    /// Returns the queries of the query head `head` (from 0), and the keys and values of its key-value head. `sample`
    /// is attention's input for one sample.
    fn head(self, sample: &[f32], head: usize) -> Head<Matrix<'_>> {
        let column = |head: usize| self.columns(sample, self.stride(), head);
        let key = self.heads.query + head / self.heads.group();
        Head { query: column(head), key: column(key), value: column(key + self.heads.key_value) }
    }

    /// Returns a view of one attention head's matrix `[length, size]`. `head` is its zero-based index among the heads
    /// side by side in `values`, which has rows of `stride` elements, one for each position.
    fn columns(self, values: &[f32], stride: usize, head: usize) -> Matrix<'_> {
        Matrix::new(&values[head * self.size..], [self.length, self.size], stride)
    }

    /// Splits one sample's gradient of attention's input into writable views, one per key-value head: the gradients of
    /// the head's keys and values, and of the queries that share the head.
    fn groups(self, sample: &mut [f32]) -> impl Iterator<Item = Group<'_>> {
        let mut queries = MatrixMut::side_by_side(sample, self.stride(), self.size).collect::<Vec<_>>();
        let mut keys = queries.split_off(self.heads.query);
        let values = keys.split_off(self.heads.key_value);
        let mut queries = queries.into_iter();
        let group = self.heads.group();
        let each = keys.into_iter().zip(values);
        each.map(move |(key, value)| Group { queries: queries.by_ref().take(group).collect(), key, value })
    }
}

/// Computes causal attention of a contiguous input. Returns the output, and for each query head of each sample a vector
/// of attention weights: the concatenated matrices `[queries, keys]` of its blocks of queries.
///
/// `starts`, `[batch, length]`, contains, for each query, the position of the first key in its document, counted from 0
/// in the sample. The query does not attend to keys before this position. `None` means that every sample is one
/// document.
pub fn attended(
    input: &FloatTensor<Flex>,
    heads: AttentionHeads,
    starts: Option<&IntTensor<Flex>>,
) -> (FloatTensor<Flex>, Vec<Vec<f32>>) {
    let sizes = Sizes::of(input, heads);
    let (values, shape) = (numbers(input), input.shape());
    let samples = shape[0];
    let first_keys = first_keys(sizes, samples, starts);
    let mut output = vec![0.0; samples * sizes.length * sizes.width()];
    let mut weights = Vec::new();
    if !output.is_empty() {
        let outputs = output.chunks_exact_mut(sizes.length * sizes.width());
        let outputs = outputs.flat_map(|output| MatrixMut::side_by_side(output, sizes.width(), sizes.size));
        let samples = values.chunks_exact(sizes.sample()).zip(first_keys.chunks_exact(sizes.length));
        let heads_of = samples.flat_map(|sample| (0..heads.query).map(move |head| (sample, head)));
        let jobs: Vec<_> = outputs.zip(heads_of).collect();
        let attend =
            |(output, ((sample, first_keys), head))| attend(sizes, &sizes.head(sample, head), first_keys, output);
        weights = jobs.into_par_iter().map(attend).collect();
    }
    (of_numbers(output, [samples, sizes.length, sizes.width()]), weights)
}

/// Returns, for each query of each sample, the position of the first key that the query attends to: the start of its
/// window or of its document, whichever is later.
fn first_keys(sizes: Sizes, samples: usize, starts: Option<&IntTensor<Flex>>) -> Vec<usize> {
    let mut first_keys: Vec<_> =
        (0..samples).flat_map(|_| (0..sizes.length).map(|at| sizes.heads.first_key(at))).collect();
    if let Some(starts) = starts {
        let queries = (0..sizes.length).cycle();
        for ((first, start), query) in first_keys.iter_mut().zip(integers::<2>(starts)).zip(queries) {
            let start = usize::try_from(start).ok().filter(|start| *start <= query);
            let start = start.unwrap_or_else(|| panic!("the document of position {query} must not start after it"));
            *first = start.max(*first);
        }
    }
    first_keys
}

/// Computes the attention of one query head of one sample into `output`. `first_keys` contains, for each query, the
/// position of the first key that it attends to. Returns the head's attention weights: the matrices `[queries, keys]`
/// of its blocks of queries, one after the other.
fn attend(
    sizes: Sizes,
    Head { query, key, value }: &Head<Matrix>,
    first_keys: &[usize],
    mut output: MatrixMut,
) -> Vec<f32> {
    let mut weights = Vec::with_capacity(weights_of_a_head(sizes.length, sizes.heads));
    for block in blocks(sizes.length, sizes.heads) {
        let before = weights.len();
        let (shape, Block { queries, keys }) = (block.shape(), block);
        query.rows(queries.clone()).append_product(key.rows(keys.clone()).transposed(), &mut weights);
        let of_block = &mut weights[before..];
        to_weights(
            of_block,
            &first_keys[queries.clone()],
            queries.start,
            keys.start,
            shape[1],
            scale(sizes.size) as f32,
        );
        output.rows(queries).set_product(Matrix::new(of_block, shape, shape[1]), value.rows(keys));
    }
    weights
}

/// Returns the gradient of the loss with respect to attention's input. `upstream` is the gradient with respect to the
/// output. `weights` are the attention weights that [`attended`] returned. All tensors must be contiguous.
pub fn to_input(
    input: &FloatTensor<Flex>,
    heads: AttentionHeads,
    weights: &[impl AsRef<[f32]> + Sync],
    upstream: &FloatTensor<Flex>,
) -> FloatTensor<Flex> {
    let sizes = Sizes::of(input, heads);
    let (values, upstream) = (numbers(input), numbers(upstream));
    let mut output = vec![0.0; values.len()];
    if !output.is_empty() {
        let gradients = output.chunks_exact_mut(sizes.sample()).flat_map(|sample| sizes.groups(sample));
        let samples = values.chunks_exact(sizes.sample()).zip(upstream.chunks_exact(sizes.length * sizes.width()));
        let groups = samples.flat_map(|sample| (0..heads.key_value).map(move |group| (sample, group)));
        let jobs: Vec<_> = gradients.zip(weights.chunks_exact(heads.group())).zip(groups).collect();
        jobs.into_par_iter().for_each(|((mut gradients, weights), ((sample, upstream), group))| {
            let queries = std::mem::take(&mut gradients.queries);
            for (index, (query, weights)) in queries.into_iter().zip(weights).enumerate() {
                let head = group * heads.group() + index;
                let upstream = sizes.columns(upstream, sizes.width(), head);
                let shared = Head {
                    query,
                    key: gradients.key.rows(0..sizes.length),
                    value: gradients.value.rows(0..sizes.length),
                };
                to_head(sizes, &sizes.head(sample, head), weights.as_ref(), upstream, shared);
            }
        });
    }
    of_numbers(output, input.shape())
}

/// Computes the gradients of one query head's queries, keys and values into `gradients`. Key and value gradients are
/// added to the previous contents, because several query heads may share a key-value head, so they must start from
/// zero.
fn to_head(
    sizes: Sizes,
    Head { query, key, value }: &Head<Matrix>,
    mut weights: &[f32],
    upstream: Matrix,
    mut gradients: Head<MatrixMut>,
) {
    let mut scratch = vec![0.0; QUERIES.min(sizes.length) * sizes.length];
    for block in blocks(sizes.length, sizes.heads) {
        let (shape, Block { queries, keys }) = (block.shape(), block);
        let (of_block, rest) = weights.split_at(shape[0] * shape[1]);
        let upstream = upstream.rows(queries.clone());
        let attention = Matrix::new(of_block, shape, shape[1]);
        gradients.value.rows(keys.clone()).add_product(attention.transposed(), upstream);
        let to_scores = &mut scratch[..of_block.len()];
        MatrixMut::whole(to_scores, shape).set_product(upstream, value.rows(keys.clone()).transposed());
        to_unscaled_scores(to_scores, of_block, queries.start - keys.start, shape[1], scale(sizes.size) as f32);
        let to_scores = Matrix::new(to_scores, shape, shape[1]);
        gradients.query.rows(queries.clone()).set_product(to_scores, key.rows(keys.clone()));
        gradients.key.rows(keys).add_product(to_scores.transposed(), query.rows(queries));
        weights = rest;
    }
}

wide! {
    // Turns attention scores into attention weights in place: a softmax over the keys that each query attends to, and 0
    // for all others. Each row of `scores` has one query's scores for `keys` keys. `first_keys` contains each query's
    // first key position. `query_start` and `key_start` are the positions of the first query and the first key.
    fn to_weights(
        scores: &mut [f32],
        first_keys: &[usize],
        query_start: usize,
        key_start: usize,
        keys: usize,
        scale: f32,
    ) {
        for (query, (row, first_key)) in scores.chunks_exact_mut(keys).zip(first_keys).enumerate() {
            let (before, row) = row.split_at_mut(first_key - key_start);
            let (seen, future) = row.split_at_mut(query_start + query + 1 - first_key);
            before.fill(0.0);
            future.fill(0.0);
            let most = largest(seen);
            for score in &mut *seen {
                *score = exp_from_below((*score - most) * scale);
            }
            let share = 1.0 / sum(seen, |_, weight| weight);
            for weight in seen {
                *weight *= share;
            }
        }
    }
}

wide! {
    // Turns the gradients of attention weights into the gradients of the unscaled scores in place. Keys at later
    // positions than the query get 0, and so do keys whose weight is 0. `keys` is the number of the block's keys, and
    // `first` the zero-based index of the first query's position among them.
    fn to_unscaled_scores(gradients: &mut [f32], weights: &[f32], first: usize, keys: usize, scale: f32) {
        for (query, (gradients, weights)) in gradients.chunks_exact_mut(keys).zip(weights.chunks_exact(keys)).enumerate() {
            let (past, future) = gradients.split_at_mut(first + query + 1);
            future.fill(0.0);
            let weights = &weights[..past.len()];
            let mean = sum(past, |at, gradient| gradient * weights[at]);
            for (gradient, weight) in past.iter_mut().zip(weights) {
                *gradient = scale * weight * (*gradient - mean);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{to_unscaled_scores, to_weights};
    use crate::kernels::cpu::wide::versions::assert_same_bits;

    /// Tests that attention weights and score gradients have the same bits with every instruction set. The block has
    /// four queries at the positions 33 to 36, and a document begins at position 35.
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        const KEYS: usize = 37;
        let scores: Vec<_> = (0..4 * KEYS).map(|at| ((at * 29 % 83) as f32 - 41.0) * 0.37).collect();
        let weights = || {
            let mut weights = scores.clone();
            to_weights(&mut weights, &[0, 0, 35, 35], 33, 0, KEYS, 0.3);
            weights
        };
        assert_same_bits(weights);
        assert_same_bits(|| {
            let mut gradients = scores.clone();
            to_unscaled_scores(&mut gradients, &weights(), 33, KEYS, 0.3);
            gradients
        });
    }
}
