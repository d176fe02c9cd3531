//! The heads of attention ([`AttentionHeads`]), the scale of attention scores, and the blocks of queries that attention
//! is divided into.

#[cfg(any(feature = "flex", feature = "remote"))]
use std::ops::Range;

/// The numbers of query heads and key-value heads of a causal attention, and the number of keys that a query sees.
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
    /// The number of keys that a query of causal attention sees, its own position included (sliding-window attention;
    /// Beltagy et al., 2020, [arXiv:2004.05150](https://arxiv.org/abs/2004.05150)); `None` if it sees all positions up
    /// to its own. [`causal_attention`](crate::causal_attention()) panics if it is 0.
    pub window: Option<usize>,
}

impl From<usize> for AttentionHeads {
    fn from(heads: usize) -> Self {
        Self { query: heads, key_value: heads, window: None }
    }
}

impl AttentionHeads {
    /// Returns the number of heads side by side in the input of a causal attention. Each query head counts once, and
    /// each key-value head twice, for its keys and its values.
    pub(crate) fn columns(self) -> usize {
        self.query + 2 * self.key_value
    }

    /// Returns the number of query heads that share one key-value head in a causal attention with grouped queries.
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    pub(crate) fn group(self) -> usize {
        self.query / self.key_value
    }

    /// Returns the position of the first key that the query at the position `query` sees in a causal attention. It is 0
    /// if the attention has no sliding window.
    #[cfg(any(feature = "flex", feature = "remote"))]
    pub(crate) fn first_key(self, query: usize) -> usize {
        self.window.map_or(0, |window| (query + 1).saturating_sub(window))
    }
}

/// Returns the factor that attention multiplies its scores by, for heads with `size` elements: 1 / sqrt(size).
pub fn scale(size: usize) -> f64 {
    1.0 / (size as f64).sqrt()
}

/// Splits [`scale`], for heads with `size` elements, into two factors, and returns them. Queries are multiplied by the
/// first factor, a power of two, before their product with the keys. The product is then multiplied by the second. In
/// f16 the product of large queries and keys would be infinite before it is scaled, and the power of two rounds
/// nothing.
pub fn scale_of_f16(size: usize) -> [f64; 2] {
    let queries = scale(size).log2().floor().exp2();
    [queries, scale(size) / queries]
}

/// The number of consecutive queries that the CPU kernel of attention processes as one block. The kernel skips the keys
/// that no query of a block sees: keys after the last query, and keys before the window of the first query.
#[cfg(any(feature = "flex", feature = "remote"))]
pub const QUERIES: usize = 64;

/// A block of queries of a sequence, and the keys that at least one of these queries sees.
#[cfg(any(feature = "flex", feature = "remote"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The positions, within the sequence and from 0, of the queries in one block of causal attention.
    pub queries: Range<usize>,
    /// The positions, within the sequence and from 0, of the keys that at least one query in a block of causal
    /// attention sees.
    pub keys: Range<usize>,
}

#[cfg(feature = "flex")]
impl Block {
    /// Returns the shape of the matrix of attention scores of a block of queries: the number of queries and the number
    /// of keys.
    pub fn shape(&self) -> [usize; 2] {
        [self.queries.len(), self.keys.len()]
    }
}

/// Divides a sequence of `length` positions into blocks of up to [`QUERIES`] consecutive queries. Returns the blocks,
/// each with the keys that at least one of its queries sees.
#[cfg(any(feature = "flex", feature = "remote"))]
pub fn blocks(length: usize, heads: AttentionHeads) -> impl Iterator<Item = Block> {
    (0..length).step_by(QUERIES).map(move |start| {
        let end = (start + QUERIES).min(length);
        Block { queries: start..end, keys: heads.first_key(start)..end }
    })
}

/// Returns the number of attention weights that the CPU kernel keeps for the backward pass, for one query head of one
/// sample of `length` positions.
#[cfg(any(feature = "flex", feature = "remote"))]
pub fn weights_of_a_head(length: usize, heads: AttentionHeads) -> usize {
    blocks(length, heads).map(|block| block.queries.len() * block.keys.len()).sum()
}
