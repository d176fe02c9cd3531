//! Multiplies matrices with the kernels of the crate `gemm-f32`, on x86-64 processors with AVX2 or AVX-512.
//!
//! The crate `gemm` calls the same kernels. For the sizes of a training it takes up to a tenth more time, because it
//! copies a matrix in an order in which the processor cannot read ahead, and does not load the output while it computes
//! a tile.
//!
//! - `tile`: the part of a product that a kernel computes at once.
//! - `panels`: copies of matrices in the order in which a kernel reads them.
//! - `parts`: the parts of matrices that are copied and computed.
//! - `transpose`: transposes a matrix in vector registers.

mod panels;
mod parts;
mod tile;
mod transpose;

use std::cell::Cell;

use super::cores::Cores;
use super::view::{Matrix, MatrixMut};
use panels::{Panels, by_rows};
use parts::parts;
pub use tile::Tile;

/// The largest number of products of an output element that are summed before the sum is added to the output. With
/// more, the strip of the left matrix that a tile reads would not stay in a core's L1 cache.
const DEPTH: usize = 512;

/// The largest number of columns of the right matrix that are copied at once. The copy then takes at most 1 MiB, which
/// is the L2 cache of a core of most processors with AVX-512.
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
    for summed in parts(left.columns, depth) {
        let add = add || summed.start > 0;
        for rows in parts(left.rows, rows_at_once) {
            let left = by_rows(left.rows(rows.clone()).columns(summed.clone()), &mut buffers.rows, cores);
            for columns in parts(right.columns, COLUMNS / tile.columns * tile.columns) {
                let right = right.rows(summed.clone()).columns(columns.clone());
                let panels = Panels::of(right, tile, &mut buffers.panels, cores);
                let mut output = output.rows(rows.clone());
                let strips = output.columns(columns).strips(tile.rows).zip(left.strips(tile.rows));
                cores.each(strips, |(mut output, left)| {
                    for (columns, panel) in parts(output.columns, tile.columns).zip(panels.iter()) {
                        tile.multiply(output.columns(columns), left, panel, add);
                    }
                });
            }
        }
    }
    BUFFERS.set(buffers);
}
