//! The blocks in which attention is computed on a GPU, and the parts that its kernels share.
//!
//! A cube computes one block: some rows (queries, or keys and values) of one head of one sample. Each row has
//! [`LANES`] units, which share the row's columns and the elements of its head. The other side of attention passes
//! through a tile in shared memory, block by block.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

/// The number of units of a cube that compute one row of a block together.
pub const LANES: usize = 4;

/// A score below which a key counts as one that the query does not see; scores of seen keys are far above.
pub const UNSEEN: f32 = -1e30;

/// Loads the rows of one head, `[rows, size]`, from a tensor `[batch, length, columns]` into shared memory as f32. Rows
/// beyond the sequence are zeros. `first` is the position of the first row, and `column` the first column of the head.
#[cube]
pub fn load<E: Float>(
    from: &Tensor<E>,
    to: &mut Shared<[f32]>,
    sample: usize,
    first: usize,
    column: usize,
    #[comptime] rows: usize,
    #[comptime] size: usize,
) {
    let length = from.shape(1);
    let columns = from.shape(2);
    let units = comptime!(rows * LANES);
    let rounds = comptime!(size.div_ceil(LANES));
    for round in 0..rounds {
        let element = round * units + UNIT_POS as usize;
        let row = element / size;
        if row < rows {
            let position = first + row;
            let at = (sample * length + position) * columns + column + element % size;
            let mut value = f32::new(0.0);
            if position < length {
                value = f32::cast_from(from[at]);
            }
            to[row * comptime!(size + 1) + element % size] = value;
        }
    }
}

/// Returns the product of a row of one block with a row of another, each `[size]`.
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

/// Adds to each element of the lane the sum over a block's columns of a factor times the element of the tile's row.
/// `factors` is `[rows, columns]` and the tile `[columns, size]`, with as many columns as rows.
#[cube]
pub fn add_weighted(
    sums: &mut Array<f32>,
    factors: &Shared<[f32]>,
    tile: &Shared<[f32]>,
    row: usize,
    lane: usize,
    #[comptime] rows: usize,
    #[comptime] size: usize,
) {
    let own = comptime!(size.div_ceil(LANES));
    for column in 0..rows {
        let factor = factors[row * comptime!(rows + 1) + column];
        #[unroll]
        for index in 0..own {
            let element = lane + index * LANES;
            if element < size {
                sums[index] += factor * tile[column * comptime!(size + 1) + element];
            }
        }
    }
}

/// Whether a query sees a key: the key is at or before the query, within its window and within its document.
#[cube]
pub fn is_seen(query: usize, key: usize, window: usize, start: usize) -> bool {
    key <= query && key + window > query && key >= start
}
