//! Multiplies matrices with the kernels of the crate `gemm-f32`, on x86-64 processors with AVX2 or AVX-512.
//!
//! The crate `gemm` calls the same kernels. For the sizes of a training it takes more time, because it waits for the
//! memory when it copies a matrix and when it writes a tile. Here the processor loads the numbers of the next copy, and
//! those of the output, while it computes tiles.
//!
//! - `tile`: the part of a product that a kernel computes at once.
//! - `panels`: copies of matrices in the order in which a kernel reads them.
//! - `ahead`: loads the numbers of the next copy into the cache.
//! - `cache`: the lines of a cache.
//! - `parts`: the parts of matrices that are copied and computed.
//! - `transpose`: transposes a matrix in vector registers.

mod ahead;
mod cache;
mod panels;
mod parts;
mod tile;
mod transpose;

use std::cell::Cell;

use super::cores::Cores;
use super::view::{Matrix, MatrixMut};
use ahead::Ahead;
use panels::{Panels, by_rows};
use parts::parts;
pub use tile::Tile;

/// The largest number of products of an output element that are summed before the sum is added to the output. With
/// more, the strip of the left matrix that a tile reads would not stay in a core's L1 cache.
const DEPTH: usize = 512;

/// The number of columns of the right matrix, in vector registers, that are copied at once for each core. The copy takes
/// at most 128 KiB with AVX2 and 256 KiB with AVX-512. So it fits into a core's L2 cache together with the numbers of
/// the next copy.
const VECTORS: usize = 8;

/// The largest number of columns of the right matrix that are copied at once for all cores.
const COLUMNS: usize = 512;

/// The largest number of rows of a transposed left matrix that are copied at once.
const ROWS: usize = 512;

thread_local! {
    static BUFFERS: Cell<Buffers> = Cell::default();
}

/// The memory for the copies of a product's matrices. A thread keeps it, because memory from the system is slow when it
/// is first written.
#[derive(Default)]
struct Buffers {
    rows: Vec<f32>,
    panels: Vec<f32>,
}

/// Makes this thread allocate its buffers, so that no product has to.
pub fn allocate_buffers() {
    BUFFERS.set(Buffers {
        rows: Vec::with_capacity(panels::capacity_of_rows(ROWS, DEPTH)),
        panels: Vec::with_capacity(panels::capacity(COLUMNS, DEPTH)),
    });
}

/// Writes the matrix product of `left` and `right` to `output`, or adds the product to `output` if `add` is set. The
/// caller must have checked that the shapes fit each other and contain no zero.
pub fn multiply(tile: &Tile, mut output: MatrixMut, left: Matrix, right: Matrix, add: bool, cores: Cores) {
    let mut buffers = BUFFERS.take();
    let depth = left.columns.div_ceil(left.columns.div_ceil(DEPTH));
    let rows_at_once = if left.column_stride == 1 { left.rows } else { ROWS };
    let columns_at_once = COLUMNS.min(VECTORS * tile.lanes * cores.number());
    for summed in parts(left.columns, depth) {
        let add = add || summed.start > 0;
        let right = right.rows(summed.clone());
        for rows in parts(left.rows, rows_at_once) {
            let left = by_rows(left.rows(rows.clone()).columns(summed.clone()), &mut buffers.rows, cores);
            for columns in parts(right.columns, columns_at_once) {
                let next = columns.end..right.columns.min(columns.end + columns_at_once);
                let panels = Panels::of(right.columns(columns.clone()), tile.columns, &mut buffers.panels, cores);
                let of_a_strip = panels.number();
                let ahead = Ahead::of(right.columns(next), left.rows.div_ceil(tile.rows) * of_a_strip);
                let mut output = output.rows(rows.clone());
                let strips = output.columns(columns).strips(tile.rows).zip(left.strips(tile.rows)).enumerate();
                cores.each(strips, |(strip, (output, left))| {
                    tile.multiply(output, left, panels, add, ahead.from(strip * of_a_strip));
                });
            }
        }
    }
    BUFFERS.set(buffers);
}
