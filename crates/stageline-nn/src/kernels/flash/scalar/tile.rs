//! The tiles of rows in shared memory, and the functions that the kernels share.
//!
//! A thread block computes some consecutive rows (queries, or keys and values) of one head of one sample. [`LANES`]
//! threads share the columns and the head's elements of each row. A block of queries reads keys and values tile by tile
//! through shared memory. A block of keys and values reads the queries in the same way.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use crate::kernels::flash::block::Sizes;

/// Number of GPU threads that together compute one row (one query or one key) of attention.
pub const LANES: usize = 4;

impl Sizes {
    /// Returns the size of a tile (rows of one attention head) in shared memory, in elements. Each row is padded by one
    /// element, so that the elements of one column lie in different memory banks.
    pub fn tile(self) -> usize {
        self.rows * (self.width + 1)
    }

    /// Returns the size, in elements, of a square matrix in shared memory with one value per query-key pair. Each row
    /// is padded by one element.
    pub fn pairs(self) -> usize {
        self.rows * (self.rows + 1)
    }

    /// Returns the number of score-matrix columns that one GPU thread computes in each row. A row's threads share the
    /// columns equally.
    pub fn own_columns(self) -> usize {
        self.rows / LANES
    }

    /// Returns the largest number of elements of a query, key or value that one GPU thread computes; some threads
    /// compute one element fewer.
    pub fn own_elements(self) -> usize {
        self.width.div_ceil(LANES)
    }
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

/// Returns the dot product of two rows of `size` elements in the shared memory of a GPU, such as one query and one key.
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

/// Adds the product of the row `row` of `factors` (such as attention weights) and the matrix `tile` to `sums`. Each GPU
/// thread adds only the elements that it computes; `lane` is its zero-based index among the row's threads. `factors` is
/// `[rows, rows]`, and `tile` is `[rows, size]`.
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

#[cube]
pub fn clear(sums: &mut Array<f32>, #[comptime] size: usize) {
    #[unroll]
    for index in 0..comptime!(size.div_ceil(LANES)) {
        sums[index] = f32::new(0.0);
    }
}

/// Writes a GPU thread's `sums`, scaled by `factor`, to a tensor. The sums are elements of one row of one head. The row
/// begins at the index `at` of the tensor, and `lane` is the thread's zero-based index among the row's threads.
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

/// Replaces a tile in shared memory with other rows of an attention head (see [`load`]). All threads of the thread
/// block synchronise before and after the load.
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
