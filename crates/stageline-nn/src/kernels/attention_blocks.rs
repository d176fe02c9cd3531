//! The scale of attention scores, and the blocks of queries in which attention is computed.

/// Returns the factor by which attention scores are multiplied, for heads with `size` elements: 1 / sqrt(size).
pub fn scale(size: usize) -> f64 {
    1.0 / (size as f64).sqrt()
}

/// The number of queries in a block of attention. A kernel computes no scores between a block's queries and keys after
/// the block's last query.
#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
pub const QUERIES: usize = 64;

/// Returns the index of the first query and the end (exclusive) of every block of queries in a sequence of `length`
/// positions.
#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
pub fn blocks(length: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(QUERIES).map(move |start| (start, (start + QUERIES).min(length)))
}

/// Returns the number of attention weights that the CPU kernel keeps for the backward, for one head of one sample of
/// `length` positions.
#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
pub fn weights_of_a_head(length: usize) -> usize {
    blocks(length).map(|(start, end)| (end - start) * end).sum()
}
