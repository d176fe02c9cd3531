//! Multiplies matrices on x86-64 processors with AVX2 or AVX-512.
//!
//! For the matrix sizes of a training, this is faster than the crate `gemm`, which waits for the memory. Here the
//! kernels prefetch the numbers that come next while they compute.
//!
//! - `kernel`: computes tiles in vector registers.
//! - `vector`: a vector register.
//! - `tile`: the part of a product that a kernel computes at once.
//! - `left`, `panels`: the two matrices of a product, in the order in which a kernel reads them.
//! - `ahead`: loads numbers into the cache before they are used.
//! - `cache`: the lines of a cache.
//! - `parts`: the parts of matrices that are copied and computed.
//! - `transpose`: transposes a matrix in vector registers.

mod ahead;
mod cache;
mod kernel;
mod left;
mod panels;
mod parts;
mod tile;
mod transpose;
mod vector;

use std::cell::Cell;

use super::addends::Addends;
use super::cores::Cores;
use super::view::{Matrix, MatrixMut};
use ahead::{Ahead, Runs};
use left::by_rows;
use panels::Panels;
use parts::parts;
pub use tile::Tile;

/// The largest number of products of an output element that are summed before the sum is added to the output. With
/// more, the strip of the left matrix that a tile reads would not stay in a core's L1 cache.
const DEPTH: usize = 512;

/// The number of columns of the right matrix that are copied at once for each core, counted in vector registers. It is
/// for products as deep as [`DEPTH`]; a product of half this depth copies twice as many. The copy takes at most 128 KiB
/// with AVX2 and 256 KiB with AVX-512. So it fits into a core's L2 cache together with the numbers of the next copy.
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
        rows: Vec::with_capacity(left::capacity(ROWS, DEPTH)),
        panels: Vec::with_capacity(panels::capacity(COLUMNS, DEPTH)),
    });
}

/// Writes the matrix product of `left` and `right`, plus `addends`, to `output`. The caller must have checked that the
/// shapes fit each other and contain no zero.
pub fn multiply(tile: &Tile, mut output: MatrixMut, left: Matrix, right: Matrix, addends: Addends, cores: Cores) {
    let mut buffers = BUFFERS.take();
    let depth = left.columns.div_ceil(left.columns.div_ceil(DEPTH));
    let rows_at_once = if left.column_stride == 1 { left.rows } else { ROWS };
    let columns_at_once = COLUMNS.min(DEPTH / depth * VECTORS * tile.lanes * cores.number());
    for summed in parts(left.columns, depth) {
        let output_too = addends.output || summed.start > 0;
        let addends = Addends { output: output_too, bias: addends.bias.filter(|_| summed.end == left.columns) };
        let right = right.rows(summed.clone());
        for rows in parts(left.rows, rows_at_once) {
            let left = by_rows(left.rows(rows.clone()).columns(summed.clone()), &mut buffers.rows, cores);
            for columns in parts(right.columns, columns_at_once) {
                let next = right.columns(columns.end..right.columns.min(columns.end + columns_at_once));
                let panels = Panels::of(right.columns(columns.clone()), tile.columns, &mut buffers.panels, cores);
                let mut output = output.rows(rows.clone());
                let output = output.columns(columns.clone());
                multiply_panels(tile, output, left, panels, addends.of_columns(columns), next, cores);
            }
        }
    }
    BUFFERS.set(buffers);
}

/// Computes the columns of a product whose right matrix is copied into `panels`, as [`multiply`] does. Meanwhile it
/// prefetches `next`, the part of the right matrix that is copied into panels next.
fn multiply_panels(
    tile: &Tile,
    output: MatrixMut,
    left: Matrix,
    panels: Panels,
    addends: Addends,
    next: Matrix,
    cores: Cores,
) {
    let (next, parts_of_next) = (Runs::of(next), left.rows.div_ceil(Tile::ROWS));
    let strips = output.strips(Tile::ROWS).zip(parts(left.rows, Tile::ROWS)).enumerate();
    cores.each(strips, |(strip, (output, rows))| {
        let next_strip = Runs::of(left.rows(rows.end..left.rows.min(rows.end + Tile::ROWS)));
        let ahead = Ahead::of(next_strip, next.part(strip, parts_of_next));
        tile.multiply(output, left.rows(rows), panels, addends, ahead);
    });
}
