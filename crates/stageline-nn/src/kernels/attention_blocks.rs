//! The scale of attention scores, and the blocks of queries in which attention is computed.

/// Returns the factor of attention scores for heads of this size: 1 / sqrt(size).
pub fn scale(size: usize) -> f64 {
    1.0 / (size as f64).sqrt()
}

/// The number of queries in a block. A kernel computes no scores of a block with keys after the block's last query.
#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
pub const QUERIES: usize = 64;

/// Returns the first query and the end (exclusive) of every block of queries in a sequence.
#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
pub fn blocks(length: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(QUERIES).map(move |start| (start, (start + QUERIES).min(length)))
}

/// Returns the number of attention weights that the CPU kernel keeps for one head of one sample.
#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
pub fn weights_of_a_head(length: usize) -> usize {
    blocks(length).map(|(start, end)| (end - start) * end).sum()
}
