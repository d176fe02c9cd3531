//! The sizes that the GPU attention kernels are compiled for, and the keys that a query attends to.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

/// Attention score of a masked key, which the query does not attend to. Other keys' scores are far above it. The
/// softmax gives weight 0 to scores at or below it.
pub const UNSEEN: f32 = -1e30;

/// The compile-time sizes of a GPU attention kernel, such as its numbers of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Number of rows (queries or keys) that one thread block computes, and also that a tile has: the part of a head
    /// that the block loads into shared memory at a time.
    pub rows: usize,
    /// Head dimension: number of elements of a query, key or value of one attention head.
    pub width: usize,
    pub query_heads: usize,
    pub key_heads: usize,
}

impl Sizes {
    /// Returns the number of query heads that share one key-value head of attention.
    pub fn group(self) -> usize {
        self.query_heads / self.key_heads
    }

    /// Returns the number of columns of attention's input: all queries, keys and values of one position.
    pub fn columns(self) -> usize {
        (self.query_heads + 2 * self.key_heads) * self.width
    }

    /// Returns the number of columns of attention's output: all heads of one position.
    pub fn output_columns(self) -> usize {
        self.query_heads * self.width
    }
}

/// Returns the zero-based column of attention's input where the keys of the key-value head `key_head` (from 0) begin.
/// The input, `[batch, length, columns]`, has `width` columns per head: first the queries of all query heads, then the
/// keys of all key-value heads, then their values.
#[cube]
pub fn column_of_keys(key_head: usize, #[comptime] sizes: Sizes) -> usize {
    (sizes.query_heads + key_head) * sizes.width
}

/// Returns the zero-based column of attention's input where the values of the key-value head `key_head` (from 0) begin.
/// The input, `[batch, length, columns]`, has `width` columns per head: first the queries of all query heads, then the
/// keys of all key-value heads, then their values.
#[cube]
pub fn column_of_values(key_head: usize, #[comptime] sizes: Sizes) -> usize {
    (sizes.query_heads + sizes.key_heads + key_head) * sizes.width
}

/// Whether a query attends to a key, at the positions `query` and `key` in their sample. The key must be:
///
/// - not after the query
/// - among the last `window` positions up to the query
/// - not before `start`, the position where the query's document begins
#[cube]
pub fn is_seen(query: usize, key: usize, window: usize, start: usize) -> bool {
    key <= query && key + window > query && key >= start
}

/// Returns the number of blocks of `rows` positions needed to cover the positions `from..until`.
#[cube]
#[allow(clippy::manual_div_ceil, reason = "kernels have no such function for positions")]
pub fn blocks_between(from: usize, until: usize, #[comptime] rows: usize) -> usize {
    (until - from + rows - 1) / rows
}

/// Returns the first position of the block of keys that contains the start of a query's sliding window. `first` is the
/// query's position, `window` the number of keys in a window, and `rows` the number of keys in a block.
#[cube]
pub fn first_seen_block(first: usize, window: usize, #[comptime] rows: usize) -> usize {
    select(first + 1 > window, first + 1 - window, 0usize) / rows * rows
}
