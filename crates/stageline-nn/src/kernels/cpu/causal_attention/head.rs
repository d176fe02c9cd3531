//! Causal attention of one query head of one sample, and its gradients.
//!
//! The weights are stored in blocks of queries. Products are computed in strips of a few queries or keys, which skip
//! the keys after a strip's last query, and most of those before its sliding window.

use std::ops::Range;

use super::super::matrix::{Matrix, MatrixMut, Packed};
use super::super::wide::{LANES, exp_from_below, largest, sum, wide};
use crate::kernels::attention_blocks::{AttentionHeads, Block, QUERIES, blocks, scale, seen, weights_of_a_head};

/// Queries, keys and values of one query head in one sample, each `[length, size]`.
pub struct Head<T> {
    pub query: T,
    pub key: T,
    pub value: T,
}

/// The tensors and settings from which a head's attention weights are computed.
struct Scores<'a> {
    query: Matrix<'a>,
    /// The transposed keys, `[size, length]`.
    keys: Packed<'a>,
    heads: AttentionHeads,
    /// For each query, the position of the first key that it attends to.
    first_keys: &'a [usize],
}

/// Computes the attention of one query head of one sample into `output`. `first_keys` contains, for each query, the
/// position of the first key that it attends to. Returns the head's attention weights: the matrices `[queries, keys]`
/// of its blocks of queries, one after the other. Returns no weights if the sequence is so long that the backward pass
/// computes them again.
pub fn attend(
    Head { query, key, value }: &Head<Matrix>,
    heads: AttentionHeads,
    first_keys: &[usize],
    mut output: MatrixMut,
) -> Vec<f32> {
    let length = query.shape()[0];
    let mut buffers = [const { Vec::new() }; 2];
    let [of_keys, of_values] = &mut buffers;
    let values = value.packed(of_values);
    let scores = Scores { query: *query, keys: key.transposed().packed(of_keys), heads, first_keys };
    let kept = weights_of_a_head(length, heads);
    let mut weights = Vec::with_capacity(kept);
    for block in blocks(length, heads) {
        if kept == 0 {
            weights.clear();
        }
        for queries in Packed::strips(block.queries.clone()) {
            let seen = seen(&queries, heads);
            let of_strip = scores.append_weights(&block, &queries, &mut weights);
            let of_seen = of_strip.columns(within(&seen, &block.keys));
            output.rows(queries).set_product(of_seen, values.rows(seen));
        }
    }
    if kept == 0 { Vec::new() } else { weights }
}

impl Scores<'_> {
    /// Computes the attention weights of the block's queries at the positions `queries`, and appends them to `weights`
    /// as a matrix `[queries, keys of the block]`. Returns this matrix.
    fn append_weights<'w>(&self, block: &Block, queries: &Range<usize>, weights: &'w mut Vec<f32>) -> Matrix<'w> {
        let (before, shape) = (weights.len(), [queries.len(), block.keys.len()]);
        weights.resize(before + shape[0] * shape[1], 0.0);
        let added = &mut weights[before..];
        let seen = seen(queries, self.heads);
        let mut scores = MatrixMut::whole(added, shape).columns(within(&seen, &block.keys));
        scores.set_product(self.query.rows(queries.clone()), self.keys.columns(seen));
        let (first_keys, scale) = (&self.first_keys[queries.clone()], scale(self.query.shape()[1]) as f32);
        to_weights(added, first_keys, queries.start, block.keys.start, shape[1], scale);
        Matrix::new(added, shape, shape[1])
    }
}

/// Computes the gradients of one query head's queries, keys and values into `gradients`. Key and value gradients are
/// added to the previous contents, because several query heads may share a key-value head, so they must start from
/// zero. `upstream` is the gradient with respect to the head's output. `first_keys` and `weights` are what [`attend`]
/// got and returned.
pub fn to_head(
    Head { query, key, value }: &Head<Matrix>,
    heads: AttentionHeads,
    first_keys: &[usize],
    mut weights: &[f32],
    upstream: Matrix,
    mut gradients: Head<MatrixMut>,
) {
    let [length, size] = query.shape();
    let mut buffers = [const { Vec::new() }; 5];
    let [of_queries, of_keys, of_transposed_keys, of_values, of_upstream] = &mut buffers;
    let (packed_queries, keys) = (query.packed(of_queries), key.packed(of_keys));
    let (values, packed_upstream) = (value.transposed().packed(of_values), upstream.packed(of_upstream));
    let scores = weights.is_empty().then(|| Scores {
        query: *query,
        keys: key.transposed().packed(of_transposed_keys),
        heads,
        first_keys,
    });
    let (mut computed_again, mut scratch) = (Vec::new(), vec![0.0; QUERIES.min(length) * length]);
    for block in blocks(length, heads) {
        let (shape, row) = (block.shape(), block.keys.len());
        let of_block = match &scores {
            Some(scores) => {
                computed_again.clear();
                for queries in Packed::strips(block.queries.clone()) {
                    scores.append_weights(&block, &queries, &mut computed_again);
                }
                &computed_again[..]
            }
            None => weights.split_off(..shape[0] * shape[1]).expect("there are weights for each block"),
        };
        let to_scores = &mut scratch[..of_block.len()];
        for queries in Packed::strips(block.queries.clone()) {
            let (seen, rows) = (seen(&queries, heads), within(&queries, &block.queries));
            let (columns, of_strip) = (within(&seen, &block.keys), rows.start * row..rows.end * row);
            let to_scores = &mut to_scores[of_strip.clone()];
            let mut to_weights = MatrixMut::whole(to_scores, [rows.len(), row]).columns(columns.clone());
            to_weights.set_product(upstream.rows(queries.clone()), values.columns(seen.clone()));
            let of_first = columns.start..queries.start + 1 - block.keys.start;
            to_unscaled_scores(to_scores, &of_block[of_strip], of_first, row, scale(size) as f32);
            let to_scores = Matrix::new(to_scores, [rows.len(), row], row).columns(columns);
            gradients.query.rows(queries).set_product(to_scores, keys.rows(seen));
        }
        // The loop above has brought the weights into the cache, row by row. This reads them in columns.
        add_transposed(&mut gradients.value, Matrix::new(of_block, shape, row), packed_upstream, &block, heads);
        add_transposed(&mut gradients.key, Matrix::new(to_scores, shape, row), packed_queries, &block, heads);
    }
}

/// Adds the product of a block's transposed matrix `[queries, keys]` and the rows of `right` for the block's queries to
/// the rows of `sum` for its keys.
fn add_transposed(sum: &mut MatrixMut, of_block: Matrix, right: Packed, block: &Block, heads: AttentionHeads) {
    for keys in Packed::strips(block.keys.clone()) {
        let queries = block.attending(&keys, heads);
        if !queries.is_empty() {
            let part = of_block.rows(within(&queries, &block.queries)).columns(within(&keys, &block.keys));
            sum.rows(keys).add_product(part.transposed(), right.rows(queries));
        }
    }
}

/// Returns the indices of the positions `part` in the range `all`.
fn within(part: &Range<usize>, all: &Range<usize>) -> Range<usize> {
    part.start - all.start..part.end - all.start
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
            let seen = query_start + query + 1 - first_key;
            // A few more keys are computed, so that the loops run over whole SIMD vectors.
            let padded = seen.next_multiple_of(LANES).min(row.len());
            let (row, future) = row.split_at_mut(padded);
            before.fill(0.0);
            future.fill(0.0);
            row[seen..].fill(f32::NEG_INFINITY);
            let most = largest(row);
            for score in &mut *row {
                *score = exp_from_below((*score - most) * scale);
            }
            row[seen..].fill(0.0);
            let share = 1.0 / sum([row], |[weight]| weight);
            for weight in row {
                *weight *= share;
            }
        }
    }
}

wide! {
    // Turns the gradients of attention weights into the gradients of the unscaled scores in place. Each row has one
    // query's gradients for `keys` keys. `seen` is the range of the keys that the first query may attend to. The range of
    // each later query ends one key later. The other keys of a row get 0, and so do keys whose weight is 0.
    fn to_unscaled_scores(gradients: &mut [f32], weights: &[f32], seen: Range<usize>, keys: usize, scale: f32) {
        for (query, (row, weights)) in gradients.chunks_exact_mut(keys).zip(weights.chunks_exact(keys)).enumerate() {
            let end = seen.end + query;
            row[..seen.start].fill(0.0);
            row[end..].fill(0.0);
            // A few more keys are computed, so that the loops run over whole SIMD vectors.
            let padded = seen.start..(seen.start + (end - seen.start).next_multiple_of(LANES)).min(keys);
            let (row, weights) = (&mut row[padded.clone()], &weights[padded]);
            let mean = sum([row, weights], |[gradient, weight]| gradient * weight);
            for (gradient, weight) in row.iter_mut().zip(weights) {
                *gradient = scale * weight * (*gradient - mean);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::wide::versions::{assert_same_bits, with_each_version};

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
            to_unscaled_scores(&mut gradients, &weights(), 2..34, KEYS, 0.3);
            gradients
        });
    }

    /// Tests that a backward pass that computes the attention weights again returns the same bits as one that gets
    /// them, also with windows and with several documents, and with the tiles of every instruction set. With other
    /// tiles the outputs and gradients differ by rounding only.
    #[test]
    fn weights_that_are_computed_again_give_the_same_gradients() {
        const SIZE: usize = 5;
        let windows = [(1, None, 1), (64, None, 64), (150, None, 40), (203, Some(70), 203), (90, Some(usize::MAX), 90)];
        for (length, window, document) in windows {
            let heads = AttentionHeads { window, ..AttentionHeads::from(1) };
            let numbers = |salt: usize| (1..=length * SIZE).map(|at| ((at * salt) as f32).sin()).collect::<Vec<_>>();
            let (query, key, value, upstream) = (numbers(3), numbers(5), numbers(7), numbers(11));
            let matrix = |numbers| Matrix::new(numbers, [length, SIZE], SIZE);
            let head = Head { query: matrix(&query), key: matrix(&key), value: matrix(&value) };
            let first_key = |at: usize| heads.first_key(at).max(at / document * document);
            let first_keys: Vec<_> = (0..length).map(first_key).collect();
            let gradients = |weights: &[f32]| {
                let mut gradients = [0; 3].map(|_| vec![0.0; length * SIZE]);
                let [query, key, value] = gradients.each_mut().map(|of| MatrixMut::whole(of, [length, SIZE]));
                to_head(&head, heads, &first_keys, weights, matrix(&upstream), Head { query, key, value });
                gradients.concat()
            };
            let [widest, avx2, plain] = with_each_version(|| {
                let mut output = vec![0.0; length * SIZE];
                let weights = attend(&head, heads, &first_keys, MatrixMut::whole(&mut output, [length, SIZE]));
                assert!(!weights.is_empty());
                assert_eq!(gradients(&weights), gradients(&[]), "{length} positions");
                [output, gradients(&weights)].concat()
            });
            assert!(widest[3 * length * SIZE..].iter().all(|gradient| *gradient != 0.0), "{length} positions");
            for (one, other) in widest.iter().zip(&avx2).chain(widest.iter().zip(&plain)) {
                assert!((one - other).abs() < 1e-5, "{length} positions: {one} and {other}");
            }
        }
    }
}
