//! The numbers of attention heads ([`AttentionHeads`]), the scale of attention scores, and the blocks of queries that
//! the CPU kernel processes.

#[cfg(any(feature = "flex", feature = "remote"))]
use std::ops::Range;

/// The numbers of query heads and key-value heads of causal attention, and the length of its sliding window.
///
/// The columns of attention's input are the queries of all query heads, then the keys of all key-value heads, and then
/// their values. Each head has the same number of elements. An integer `n` converts into `n` query heads and `n`
/// key-value heads without a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionHeads {
    /// The number of query heads of a causal attention.
    pub query: usize,
    /// The number of key-value heads of a causal attention. Consecutive query heads share one key-value head
    /// (grouped-query attention; Ainslie et al., 2023, [arXiv:2305.13245](https://arxiv.org/abs/2305.13245)). So
    /// [`causal_attention`](crate::causal_attention()) panics if this number does not divide the number of query heads.
    pub key_value: usize,
    /// The number of keys that a query of causal attention attends to, its own position included (sliding-window
    /// attention; Beltagy et al., 2020, [arXiv:2004.05150](https://arxiv.org/abs/2004.05150)); `None` if it attends to
    /// all positions up to its own. [`causal_attention`](crate::causal_attention()) panics if it is 0.
    pub window: Option<usize>,
}

impl From<usize> for AttentionHeads {
    fn from(heads: usize) -> Self {
        Self { query: heads, key_value: heads, window: None }
    }
}

impl AttentionHeads {
    /// Returns how many heads attention's input contains side by side: one for each query head, and two for each
    /// key-value head (its keys and its values).
    pub(crate) fn columns(self) -> usize {
        self.query + 2 * self.key_value
    }

    /// Returns the number of query heads that share one key-value head (grouped-query attention).
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    pub(crate) fn group(self) -> usize {
        self.query / self.key_value
    }

    /// Returns the position of the first key that the query at the position `query` attends to: the start of its
    /// sliding window, or 0 without a window.
    #[cfg(any(feature = "flex", feature = "remote"))]
    pub(crate) fn first_key(self, query: usize) -> usize {
        self.window.map_or(0, |window| (query + 1).saturating_sub(window))
    }
}

/// Returns the attention scale `1 / sqrt(size)` for heads with `size` elements. Attention scores are query-key dot
/// products times this scale.
pub fn scale(size: usize) -> f64 {
    1.0 / (size as f64).sqrt()
}

/// Splits [`scale`] for heads with `size` elements into two factors, so that scores do not overflow in f16 before they
/// are scaled. Queries are multiplied by the first factor before their product with the keys, and the product by the
/// second. The first factor is a power of two, so that multiplying by it is exact.
pub fn scale_of_f16(size: usize) -> [f64; 2] {
    let queries = scale(size).log2().floor().exp2();
    [queries, scale(size) / queries]
}

/// The number of consecutive queries that the CPU attention kernel processes as one block. The kernel skips the keys
/// that no query of a block attends to: keys after the last query, and keys before the window of the first query.
#[cfg(any(feature = "flex", feature = "remote"))]
pub const QUERIES: usize = 64;

/// A block of consecutive queries of a sequence, and the keys that they see, as [`seen`] returns them.
#[cfg(any(feature = "flex", feature = "remote"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Zero-based positions of the block's queries in the sequence.
    pub queries: Range<usize>,
    /// Zero-based positions of the block's keys.
    pub keys: Range<usize>,
}

#[cfg(feature = "flex")]
impl Block {
    /// Returns the shape of the block's matrix of attention scores: the number of queries and the number of keys.
    pub fn shape(&self) -> [usize; 2] {
        [self.queries.len(), self.keys.len()]
    }

    /// Returns the positions of the block's queries that attend to at least one of the keys at the positions `keys`.
    /// The range may be empty.
    pub fn attending(&self, keys: &Range<usize>, heads: AttentionHeads) -> Range<usize> {
        let behind_window = heads.window.map_or(self.queries.end, |window| (keys.end - 1).saturating_add(window));
        let end = self.queries.end.min(behind_window);
        self.queries.start.max(keys.start).min(end)..end
    }
}

/// Returns the positions of the keys to which at least one of the queries at the positions `queries` attends. The first
/// is rounded down to a multiple of [`QUERIES`], where a panel of a packed matrix begins.
#[cfg(any(feature = "flex", feature = "remote"))]
pub fn seen(queries: &Range<usize>, heads: AttentionHeads) -> Range<usize> {
    heads.first_key(queries.start) / QUERIES * QUERIES..queries.end
}

/// Divides a sequence of `length` positions into blocks of up to [`QUERIES`] consecutive queries, each with the keys
/// that at least one of its queries attends to.
#[cfg(any(feature = "flex", feature = "remote"))]
pub fn blocks(length: usize, heads: AttentionHeads) -> impl Iterator<Item = Block> {
    (0..length).step_by(QUERIES).map(move |start| {
        let queries = start..(start + QUERIES).min(length);
        Block { keys: seen(&queries, heads), queries }
    })
}

/// The largest number of attention weights that the CPU kernel saves for the backward pass, per query head and sample:
/// those of 2048 positions without a window, 8.3 MiB. More weights are computed again, because their number can grow
/// with the square of the length.
#[cfg(any(feature = "flex", feature = "remote"))]
const MOST_SAVED: usize = 2048 * (2048 + QUERIES) / 2;

/// Returns the number of attention weights that the CPU kernel saves for the backward pass, per query head and sample
/// of `length` positions. It is 0 if the backward pass computes them again.
#[cfg(any(feature = "flex", feature = "remote"))]
pub fn weights_of_a_head(length: usize, heads: AttentionHeads) -> usize {
    let weights = blocks(length, heads).map(|block| block.queries.len() * block.keys.len()).sum();
    if weights > MOST_SAVED { 0 } else { weights }
}
