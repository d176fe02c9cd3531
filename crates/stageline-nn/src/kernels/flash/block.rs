//! The sizes of an attention and its blocks, and the keys that a query sees, for all kernels of attention on GPUs.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

/// The attention score of a key that the query does not see. Scores of seen keys are far above it. A score at or below
/// it gets the weight 0.
pub const UNSEEN: f32 = -1e30;

/// The sizes of an attention, such as its numbers of heads, that its GPU kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// The number of rows (queries or keys) that one thread block computes. It is also the number of rows in a tile:
    /// the part of a head that the block loads into shared memory at a time.
    pub rows: usize,
    /// The number of elements of a query, key or value of one attention head.
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

/// Returns the column, from 0, of attention's input where the keys of the key-value head `key_head` (from 0) begin.
/// Each head has `width` columns of the input `[batch, length, columns]`. The queries of all query heads come first,
/// then the keys of all key-value heads, and then their values.
#[cube]
pub fn column_of_keys(key_head: usize, #[comptime] sizes: Sizes) -> usize {
    (sizes.query_heads + key_head) * sizes.width
}

/// Returns the column, from 0, of attention's input where the values of the key-value head `key_head` (from 0) begin.
/// Each head has `width` columns of the input `[batch, length, columns]`. The queries of all query heads come first,
/// then the keys of all key-value heads, and then their values.
#[cube]
pub fn column_of_values(key_head: usize, #[comptime] sizes: Sizes) -> usize {
    (sizes.query_heads + sizes.key_heads + key_head) * sizes.width
}

/// Whether the query at the position `query` sees the key at the position `key`. The key must not be after the query,
/// and must be among the last `window` positions up to the query. It must also not be before `start`, the position
/// where the query's document begins.
#[cube]
pub fn is_seen(query: usize, key: usize, window: usize, start: usize) -> bool {
    key <= query && key + window > query && key >= start
}

/// Returns the number of blocks of `rows` positions each that cover the positions `from..until` of a sequence.
#[cube]
#[allow(clippy::manual_div_ceil, reason = "kernels have no such function for positions")]
pub fn blocks_between(from: usize, until: usize, #[comptime] rows: usize) -> usize {
    (until - from + rows - 1) / rows
}

/// Returns the first position of the block of keys where a query's sliding window begins. `first` is the position of
/// the query, `window` the number of keys in a window and `rows` the number of keys in a block.
#[cube]
pub fn first_seen_block(first: usize, window: usize, #[comptime] rows: usize) -> usize {
    select(first + 1 > window, first + 1 - window, 0usize) / rows * rows
}
