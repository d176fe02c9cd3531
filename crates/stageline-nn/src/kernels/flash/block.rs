//! The blocks of rows in which attention is computed on a GPU, and the functions that its kernels share.
//!
//! A cube (CubeCL's name for a thread block) computes one block: some consecutive rows (queries, or keys and values) of
//! one head of one sample. [`LANES`] units (threads) share the columns and the head's elements of each row. A block of
//! queries reads the keys and values, and a block of keys and values the queries, tile by tile through shared memory.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

/// The number of GPU threads that together compute one row (one query or one key) of attention.
pub const LANES: usize = 4;

/// The attention score that a GPU kernel stores for a key that the query does not see. The scores of seen keys are far
/// above it; a score at or below it gets the weight 0.
pub const UNSEEN: f32 = -1e30;

/// The sizes of an attention, such as its numbers of heads, for which its GPU kernels are compiled.
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
    /// Returns the number of elements that a tile (rows of one attention head) takes in shared memory. Each row ends
    /// with an unused element, so that the elements of one column lie in different memory banks.
    pub fn tile(self) -> usize {
        self.rows * (self.width + 1)
    }

    /// Returns the number of elements in shared memory of a square matrix with one number for each pair of a query and
    /// a key. Each row of the matrix ends with an unused element.
    pub fn pairs(self) -> usize {
        self.rows * (self.rows + 1)
    }

    /// Returns the number of columns that one GPU thread computes in its row of a matrix of attention scores. The
    /// threads of a row share the columns of the row equally.
    pub fn own_columns(self) -> usize {
        self.rows / LANES
    }

    /// Returns the number of elements of a query, key or value of one head that one GPU thread computes; some threads
    /// may compute one element fewer.
    pub fn own_elements(self) -> usize {
        self.width.div_ceil(LANES)
    }

    /// Returns the number of query heads of an attention that share one key-value head.
    pub fn group(self) -> usize {
        self.query_heads / self.key_heads
    }

    /// Returns the number of columns of attention's input: all queries, keys and values of one position.
    pub fn columns(self) -> usize {
        (self.query_heads + 2 * self.key_heads) * self.width
    }
}

/// Returns the index of the column in attention's input at which the keys of a key-value head begin.
#[cube]
pub fn column_of_keys(key_head: usize, #[comptime] sizes: Sizes) -> usize {
    (sizes.query_heads + key_head) * sizes.width
}

/// Returns the index of the column in attention's input at which the values of a key-value head begin.
#[cube]
pub fn column_of_values(key_head: usize, #[comptime] sizes: Sizes) -> usize {
    (sizes.query_heads + sizes.key_heads + key_head) * sizes.width
}

/// Loads rows of one attention head, `[rows, size]`, from a tensor `[batch, length, columns]` into the shared memory of
/// a GPU as f32. Rows beyond the end of the sequence become zeros. `first` is the position of the first loaded row, and
/// `column` the first column of the head.
#[cube]
pub fn load<E: Float>(
    from: &Tensor<E>,
    to: &mut Shared<[f32]>,
    sample: usize,
    first: usize,
    column: usize,
    #[comptime] sizes: Sizes,
) {
    let length = from.shape(1);
    let columns = from.shape(2);
    let units = comptime!(sizes.rows * LANES);
    let rounds = comptime!(sizes.own_elements());
    for round in 0..rounds {
        let element = round * units + UNIT_POS as usize;
        let row = element / sizes.width;
        if row < sizes.rows {
            let position = first + row;
            let at = (sample * length + position) * columns + column + element % sizes.width;
            let mut value = f32::new(0.0);
            if position < length {
                value = f32::cast_from(from[at]);
            }
            to[row * comptime!(sizes.width + 1) + element % sizes.width] = value;
        }
    }
}

/// Returns the dot product of two rows of `size` numbers in the shared memory of a GPU, such as one query and one key.
#[cube]
pub fn product(
    one: &Shared<[f32]>,
    row: usize,
    other: &Shared<[f32]>,
    other_row: usize,
    #[comptime] size: usize,
) -> f32 {
    let stride = comptime!(size + 1);
    let mut sum = f32::new(0.0);
    for element in 0..size {
        sum += one[row * stride + element] * other[other_row * stride + element];
    }
    sum
}

/// Multiplies one row of `factors` (such as attention weights) by the matrix `tile`, and adds the products to those
/// elements of the output that this GPU thread computes. `factors` is square, `[rows, rows]`, and `tile` is
/// `[rows, size]`.
#[cube]
pub fn add_weighted(
    sums: &mut Array<f32>,
    factors: &Shared<[f32]>,
    tile: &Shared<[f32]>,
    row: usize,
    lane: usize,
    #[comptime] sizes: Sizes,
) {
    let own = comptime!(sizes.own_elements());
    for column in 0..sizes.rows {
        let factor = factors[row * comptime!(sizes.rows + 1) + column];
        #[unroll]
        for index in 0..own {
            let element = lane + index * LANES;
            if element < sizes.width {
                sums[index] += factor * tile[column * comptime!(sizes.width + 1) + element];
            }
        }
    }
}

/// Whether a query of attention sees a key: the key is at or before the query, within the query's sliding window and
/// within the query's document.
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

/// Returns the position of the first key in the block of keys in which a query's sliding window begins. `first` is the
/// position of the query, `window` the number of keys in a window and `rows` the number of keys in a block.
#[cube]
pub fn first_seen_block(first: usize, window: usize, #[comptime] rows: usize) -> usize {
    select(first + 1 > window, first + 1 - window, 0usize) / rows * rows
}

/// Sets the partial sums of a GPU thread to zero: one sum for each element of a row that the thread computes.
#[cube]
pub fn clear(sums: &mut Array<f32>, #[comptime] size: usize) {
    #[unroll]
    for index in 0..comptime!(size.div_ceil(LANES)) {
        sums[index] = f32::new(0.0);
    }
}

/// Writes the elements of one head's row that a GPU thread has computed to a tensor, in which the row begins at the
/// index `at`. Each element is the thread's sum for this element, multiplied by `factor`.
#[cube]
pub fn write<E: Float>(
    to: &mut Tensor<E>,
    at: usize,
    sums: &Array<f32>,
    factor: f32,
    lane: usize,
    #[comptime] size: usize,
) {
    #[unroll]
    for index in 0..comptime!(size.div_ceil(LANES)) {
        let element = lane + index * LANES;
        if element < size {
            to[at + element] = E::cast_from(sums[index] * factor);
        }
    }
}

/// Replaces the contents of a tile in shared memory by other rows of an attention head (see [`load`]). It first waits
/// until all GPU threads of the thread block have finished with the old contents, and then until all have loaded.
#[cube]
pub fn reload<E: Float>(
    from: &Tensor<E>,
    tile: &mut Shared<[f32]>,
    sample: usize,
    first: usize,
    column: usize,
    #[comptime] sizes: Sizes,
) {
    sync_cube();
    load::<E>(from, tile, sample, first, column, sizes);
    sync_cube();
}
