//! The parts of matrices (fragments) that the threads of a plane (CubeCL's name for a warp) hold in registers for
//! tensor cores, and the tiles in shared memory from which fragments are loaded.
//!
//! Tensor cores multiply a left matrix of 16 x 16 elements and a right matrix of 16 x 8. Each of the 32 threads (lanes)
//! of a plane holds a few elements of each (PTX ISA, "Matrix Fragments for mma.m16n8k16"): with group = lane / 4 and
//! place = lane % 4,
//!
//! - of the left matrix, four pairs in the rows group and group + 8, from the columns 2 x place and 2 x place + 8;
//! - of the right matrix, two pairs in the column group, from the rows 2 x place and 2 x place + 8;
//! - of the product, one pair in each of the rows group and group + 8, from the column 2 x place.
//!
//! So two products side by side have the layout of a left matrix, and can be used as one without an exchange between
//! threads.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::cmma::{MatrixIdent, MmaDefinition};
use burn_cubecl::cubecl::prelude::*;

use crate::kernels::flash::block::Sizes;

/// Shape (m, n, k) of one tensor-core matrix product: its rows, its columns and its inner dimension.
pub const MMA: [usize; 3] = [16, 8, 16];

/// Number of planes (warps) in a thread block of attention on tensor cores. Each computes 16 rows (queries or keys).
const PLANES: usize = 4;

/// Number of rows (queries or keys) that a thread block of attention on tensor cores computes, and also that a tile
/// has: the part of a head that the block loads into shared memory at a time.
pub const ROWS: usize = 16 * PLANES;

/// Number of threads in a thread block of attention on tensor cores.
pub const UNITS: usize = 32 * PLANES;

/// Number of half-precision elements that a thread loads at a time (16 bytes).
const EIGHT: usize = 8;

/// Two neighbouring elements of a matrix, which a thread keeps in one register.
pub type Pair<E> = Vector<E, Const<2>>;

/// Eight consecutive elements of a tensor in half precision.
pub type Eight<E> = Vector<E, Const<8>>;

/// Returns a kernel's shared memory in bytes, for heads of `size` elements: two tiles, and three f32 values per row.
pub fn shared_memory(size: usize) -> usize {
    2 * 16 * tile(size) + 3 * size_of::<f32>() * ROWS
}

/// Returns a tile's size in [`Eight`] vectors, for [`ROWS`] rows of `size` elements. Each row is padded by one vector,
/// so that eight rows lie in different memory banks.
fn tile(size: usize) -> usize {
    ROWS * (size / EIGHT + 1)
}

/// Allocates a tile in shared memory, for rows of one head.
#[cube]
pub fn new_tile<E: Float>(#[comptime] sizes: Sizes) -> Shared<[Eight<E>]> {
    Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tile(sizes.width)), 16usize)
}

/// Loads [`ROWS`] rows of one head from a tensor `[batch, length, columns]` into a tile in shared memory. Rows beyond
/// the end of the sequence become zeros. `first` is the position of the first row, and `column` the first column of the
/// head.
#[cube]
pub fn load<E: Float>(
    from: &Tensor<Eight<E>>,
    to: &mut Shared<[Eight<E>]>,
    sample: usize,
    first: usize,
    column: usize,
    #[comptime] columns: usize,
    #[comptime] sizes: Sizes,
) {
    let length = from.shape(1);
    let in_row = comptime!(sizes.width / EIGHT);
    #[unroll]
    for round in 0..comptime!(ROWS * in_row / (UNITS)) {
        let vector = round * comptime!(UNITS) + UNIT_POS as usize;
        let row = vector / in_row;
        let place = vector % in_row;
        let position = first + row;
        let mut elements = Vector::new(E::new(0.0));
        if position < length {
            elements = from[((sample * length + position) * columns + column) / EIGHT + place];
        }
        to[row * comptime!(in_row + 1) + place] = elements;
    }
}

/// Loads four 8 x 8 matrices from a tile, which together cover 16 x 16 elements starting at the given row and column.
/// If `down` is set, the second matrix lies below the first, otherwise to its right. If `transposed` is set, each of
/// the four is transposed during the load.
#[cube]
fn matrices<E: Float>(
    tile: &Shared<[Eight<E>]>,
    row: usize,
    column: usize,
    #[comptime] down: bool,
    #[comptime] transposed: bool,
    #[comptime] sizes: Sizes,
) -> Array<Pair<E>> {
    let definition = MmaDefinition::<E, E, f32>::new(comptime!(MMA[0]), comptime!(MMA[1]), comptime!(MMA[2]));
    let lane = UNIT_POS_PLANE as usize;
    let low = lane / 8 % 2;
    let high = lane / 16;
    let (below, right) = if comptime!(down) { (low, high) } else { (high, low) };
    let at = (row + below * 8 + lane % 8) * comptime!(sizes.width / EIGHT + 1) + column / EIGHT + right;
    definition.load_matrix::<Eight<E>, Const<2>>(&tile[at..at + 1], MatrixIdent::A, 4usize, transposed)
}

/// Loads this thread's part of the left matrix of tensor-core products: 16 rows of a tile, starting at `row`, with all
/// elements of the head. Each group of 16 columns takes four pairs.
#[cube]
pub fn left_of<E: Float>(tile: &Shared<[Eight<E>]>, row: usize, #[comptime] sizes: Sizes) -> Array<Pair<E>> {
    let steps = comptime!(sizes.width / 16);
    let mut left = Array::<Pair<E>>::new(comptime!(4 * steps));
    #[unroll]
    for step in 0..steps {
        let found = matrices::<E>(tile, row, step * 16, true, false, sizes);
        #[unroll]
        for pair in 0..4usize {
            left[step * 4 + pair] = found[pair];
        }
    }
    left
}

/// Returns an array with `number` twice, once for each of the two rows that this thread holds in a fragment.
#[cube]
pub fn both(number: f32) -> Array<f32> {
    let mut numbers = Array::<f32>::new(2usize);
    numbers[0] = number;
    numbers[1] = number;
    numbers
}

/// Returns zeros for this thread's parts of `count` products (of 16 x 8 elements): two pairs for each product.
#[cube]
pub fn zeros(#[comptime] count: usize) -> Array<Pair<f32>> {
    let mut sums = Array::<Pair<f32>>::new(comptime!(2 * count));
    #[unroll]
    for pair in 0..comptime!(2 * count) {
        sums[pair] = Vector::new(f32::new(0.0));
    }
    sums
}

/// Computes `sums += left @ rows.T`, where `rows` are `pairs` groups of 16 tile rows, starting at `row`. Each tile row
/// gives one column of `sums`.
#[cube]
pub fn add_dot_products<E: Float>(
    sums: &mut Array<Pair<f32>>,
    left: &Array<Pair<E>>,
    tile: &Shared<[Eight<E>]>,
    row: usize,
    #[comptime] pairs: usize,
    #[comptime] sizes: Sizes,
) {
    #[unroll]
    for step in 0..comptime!(sizes.width / 16) {
        #[unroll]
        for pair in 0..pairs {
            let right = matrices::<E>(tile, row + pair * 16, step * 16, false, false, sizes);
            add_products::<E>(sums, comptime!(2 * pair), left, step, &right);
        }
    }
}

/// Computes `sums += weights @ rows`, where `rows` are 16 rows of a tile, starting at `row`. `weights` is `[16, 16]`,
/// and `rows` and `sums` are `[16, width]`. `weights` and `sums` are only this thread's parts of these matrices.
#[cube]
pub fn add_weighted<E: Float>(
    sums: &mut Array<Pair<f32>>,
    weights: &Array<Pair<E>>,
    tile: &Shared<[Eight<E>]>,
    row: usize,
    #[comptime] sizes: Sizes,
) {
    #[unroll]
    for pair in 0..comptime!(sizes.width / 16) {
        let right = matrices::<E>(tile, row, pair * 16, true, true, sizes);
        add_products::<E>(sums, comptime!(2 * pair), weights, 0usize, &right);
    }
}

/// Multiplies a left matrix with two right matrices that lie side by side, and adds the results to the products `at`
/// and `at + 1` in `sums`. The left matrix is the group of 16 columns with the index `step` (from 0) in `left`.
#[cube]
fn add_products<E: Float>(
    sums: &mut Array<Pair<f32>>,
    #[comptime] at: usize,
    left: &Array<Pair<E>>,
    #[comptime] step: usize,
    right: &Array<Pair<E>>,
) {
    let definition = MmaDefinition::<E, E, f32>::new(comptime!(MMA[0]), comptime!(MMA[1]), comptime!(MMA[2]));
    let mut one = Array::<Pair<E>>::new(4usize);
    #[unroll]
    for pair in 0..4usize {
        one[pair] = left[comptime!(4 * step) + pair];
    }
    #[unroll]
    for side in 0..2usize {
        let mut other = Array::<Pair<E>>::new(2usize);
        let mut before = Array::<Pair<f32>>::new(2usize);
        #[unroll]
        for pair in 0..2usize {
            other[pair] = right[side * 2 + pair];
            before[pair] = sums[(at + side) * 2 + pair];
        }
        let after = definition.execute(&one, &other, &before);
        #[unroll]
        for pair in 0..2usize {
            sums[(at + side) * 2 + pair] = after[pair];
        }
    }
}

/// Rounds the products `at` and `at + 1` in `sums` to half precision, for use as the left matrix of further products.
/// Side by side, they already have a left matrix's layout.
#[cube]
pub fn as_left<E: Float>(sums: &Array<Pair<f32>>, #[comptime] at: usize) -> Array<Pair<E>> {
    let mut left = Array::<Pair<E>>::new(4usize);
    #[unroll]
    for pair in 0..4usize {
        left[pair] = Vector::cast_from(sums[comptime!(2 * at) + pair]);
    }
    left
}

/// Writes this thread's part of 16 rows of a head to a tensor `[batch, length, columns]`, each row scaled by its own
/// value in `factors`. `row` is the position of the thread's first row; its other row is eight rows below. `column` is
/// the first column of the head in the tensor. Rows beyond the end of the sequence are not written.
#[cube]
#[allow(clippy::too_many_arguments)]
pub fn write<E: Float>(
    to: &mut Tensor<Pair<E>>,
    sums: &Array<Pair<f32>>,
    factors: &Array<f32>,
    sample: usize,
    row: usize,
    column: usize,
    #[comptime] columns: usize,
    #[comptime] sizes: Sizes,
) {
    let length = to.shape(1);
    let place = UNIT_POS_PLANE as usize % 4;
    #[unroll]
    for half in 0..2usize {
        let position = row + half * 8;
        if position < length {
            let at = ((sample * length + position) * columns + column) / 2 + place;
            #[unroll]
            for product in 0..comptime!(sizes.width / 8) {
                to[at + product * 4] = Vector::cast_from(sums[product * 2 + half] * Vector::new(factors[half]));
            }
        }
    }
}
