//! Computes causal attention on the CPU, in blocks of queries. Each block skips later keys and keys before the sliding
//! window.

mod head;

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use head::{Head, attend, to_head};
use rayon::prelude::*;

use super::matrix::{Matrix, MatrixMut};
use super::numbers::{integers, numbers, of_numbers};
use crate::kernels::attention_blocks::AttentionHeads;

/// Memory layout of attention's packed input `[batch, length, (query heads + 2 x key-value heads) x size]`, from which
/// the kernel finds each head's queries, keys and values.
#[derive(Clone, Copy)]
struct Sizes {
    length: usize,
    heads: AttentionHeads,
    /// Head dimension: number of elements in a query, key or value of one attention head.
    size: usize,
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
/// of attention weights: the concatenated matrices `[queries, keys]` of its blocks of queries. The vectors are empty if
/// the sequences are so long that the backward pass computes their weights again.
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
            |(output, ((sample, first_keys), head))| attend(&sizes.head(sample, head), heads, first_keys, output);
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
            match usize::try_from(start) {
                Ok(start) if start <= query => *first = start.max(*first),
                _ => panic!("the document of position {query} starts at {start}; give a position from 0 to {query}"),
            }
        }
    }
    first_keys
}

/// Returns the gradient of the loss with respect to attention's input. `upstream` is the gradient with respect to the
/// output. `starts` and `weights` are what [`attended`] got and returned. All tensors must be contiguous.
pub fn to_input(
    input: &FloatTensor<Flex>,
    heads: AttentionHeads,
    starts: Option<&IntTensor<Flex>>,
    weights: &[impl AsRef<[f32]> + Sync],
    upstream: &FloatTensor<Flex>,
) -> FloatTensor<Flex> {
    let sizes = Sizes::of(input, heads);
    let (values, upstream) = (numbers(input), numbers(upstream));
    let first_keys = first_keys(sizes, input.shape()[0], starts);
    let mut output = vec![0.0; values.len()];
    if !output.is_empty() {
        let gradients = output.chunks_exact_mut(sizes.sample()).flat_map(|sample| sizes.groups(sample));
        let samples = values.chunks_exact(sizes.sample()).zip(upstream.chunks_exact(sizes.length * sizes.width()));
        let samples = samples.zip(first_keys.chunks_exact(sizes.length));
        let groups = samples.flat_map(|sample| (0..heads.key_value).map(move |group| (sample, group)));
        let jobs: Vec<_> = gradients.zip(weights.chunks_exact(heads.group())).zip(groups).collect();
        jobs.into_par_iter().for_each(|((mut gradients, weights), (((sample, upstream), first_keys), group))| {
            let queries = std::mem::take(&mut gradients.queries);
            for (index, (query, weights)) in queries.into_iter().zip(weights).enumerate() {
                let head = group * heads.group() + index;
                let upstream = sizes.columns(upstream, sizes.width(), head);
                let shared = Head {
                    query,
                    key: gradients.key.rows(0..sizes.length),
                    value: gradients.value.rows(0..sizes.length),
                };
                to_head(&sizes.head(sample, head), heads, first_keys, weights.as_ref(), upstream, shared);
            }
        });
    }
    of_numbers(output, input.shape())
}
