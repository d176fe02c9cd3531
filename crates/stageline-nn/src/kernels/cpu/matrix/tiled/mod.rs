//! Multiplies matrices on x86-64 processors with AVX2 or AVX-512.
//!
//! For the matrix sizes of a training run, this is faster than the crate `gemm`, which stalls on memory. The
//! micro-kernels here prefetch the data that comes next while they compute.
//!
//! - `kernel`: micro-kernels, which compute register tiles.
//! - `vector`: a SIMD vector register.
//! - `tile`: the register tile, the part of a product that a micro-kernel computes in one call.
//! - `panels`: packs a matrix into panels, in the order in which a micro-kernel reads it.
//! - `left`: divides a product's left matrix into strips, the rows of a register tile.
//! - `ahead`: prefetches data into the cache.
//! - `cache`: the size of a cache line.
//! - `parts`: splits matrices into the parts that are copied and computed.
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

use super::super::huge_pages::remember;
use super::addends::Addends;
use super::cores::Cores;
use super::view::{Matrix, MatrixMut};
use ahead::{Ahead, Runs};
use left::Left;
pub use panels::Panels;
use parts::parts;
pub use tile::Tile;

/// Largest inner dimension that is summed before the sum is added to the output. With a larger one, the left-matrix
/// rows of a tile would not stay in a core's L1 cache.
const DEPTH: usize = 512;

/// Number of right-matrix columns that are packed at a time for each core, for products as deep as [`DEPTH`]; a product
/// of half this depth packs twice as many. The packed panels take at most 256 KiB, which fits into a core's L2 cache on
/// most processors. With fewer columns, a core would read the left matrix from that cache more often, and rows of the
/// right matrix in pieces of less than 512 bytes.
const COLUMNS_OF_A_CORE: usize = 128;

/// Largest number of right-matrix columns that are packed at a time for all cores together.
const COLUMNS: usize = 512;

/// Largest number of rows of a transposed left matrix that are packed at a time: a number of whole strips. As deep as
/// [`DEPTH`], they take about 1 MiB.
const ROWS: usize = 86 * Tile::ROWS;

thread_local! {
    static BUFFERS: Cell<Buffers> = Cell::default();
}

/// A thread's buffers for the copies of a product's matrices. The thread keeps them, because fresh memory from the
/// operating system is slow on first write.
#[derive(Default)]
struct Buffers {
    strips: Vec<f32>,
    panels: Vec<f32>,
}

/// Allocates this thread's buffers for packed matrices, so that the thread's first product need not allocate them.
pub fn allocate_buffers() {
    let strips = Vec::with_capacity(panels::capacity(ROWS, DEPTH));
    let panels = Vec::with_capacity(panels::capacity(COLUMNS, DEPTH));
    let of = |buffer: &Vec<f32>| buffer.as_ptr()..buffer.as_ptr().wrapping_add(buffer.capacity());
    [&strips, &panels].map(of).into_iter().for_each(remember);
    BUFFERS.set(Buffers { strips, panels });
}

/// Computes `output = left @ right + addends` in register tiles of at most the size `tile`. The caller must have
/// checked that the shapes match and contain no zero.
pub fn multiply(tile: &Tile, mut output: MatrixMut, left: Matrix, right: Matrix, addends: Addends, cores: Cores) {
    let mut buffers = BUFFERS.take();
    let depth = left.columns.div_ceil(left.columns.div_ceil(DEPTH));
    let rows_at_once = if left.column_stride == 1 { left.rows } else { ROWS };
    let columns_at_once = COLUMNS.min(DEPTH / depth * COLUMNS_OF_A_CORE * cores.number());
    for summed in parts(left.columns, depth) {
        let output_too = addends.output || summed.start > 0;
        let addends = Addends { output: output_too, bias: addends.bias.filter(|_| summed.end == left.columns) };
        for rows in parts(left.rows, rows_at_once) {
            let is_last = rows.end == left.rows;
            let summed_next = if is_last { summed.end..left.columns.min(summed.end + depth) } else { summed.clone() };
            let (now, later) = (right.rows(summed.clone()), right.rows(summed_next));
            let left = left.rows(rows.clone()).columns(summed.clone());
            let left = Left::of(left, &mut buffers.strips, cores);
            for columns in parts(right.columns, columns_at_once) {
                let next = if columns.end < now.columns {
                    now.columns(columns.end..now.columns.min(columns.end + columns_at_once))
                } else {
                    later.columns(0..later.columns.min(columns_at_once))
                };
                let panels = Panels::of(now.columns(columns.clone()), tile.columns, &mut buffers.panels, cores);
                let output = output.rows(rows.clone()).columns(columns.clone());
                multiply_panels(tile, output, left, panels, addends.of_columns(columns), next, cores);
            }
        }
    }
    BUFFERS.set(buffers);
}

/// Computes `output = left @ right + addends` on the calling thread, where `panels` are the packed panels of the right
/// matrix. `left` may be a transposed view: it is not copied, because it is expected to be small.
pub fn multiply_packed(tile: &Tile, mut output: MatrixMut, left: Matrix, panels: Panels, addends: Addends) {
    for summed in parts(left.columns, DEPTH) {
        let addends = Addends { output: addends.output || summed.start > 0, ..addends };
        let (left, panels) = (left.columns(summed.clone()), panels.rows(summed));
        for (output, rows) in output.rows(0..left.rows).strips(Tile::ROWS).zip(parts(left.rows, Tile::ROWS)) {
            tile.multiply(output, left.rows(rows), panels, addends, Ahead::nothing());
        }
    }
}

/// Computes `output = left @ right + addends`, where `panels` are the packed panels of the right matrix. Meanwhile
/// prefetches `next`, the part of the right matrix that is packed next.
fn multiply_panels(
    tile: &Tile,
    output: MatrixMut,
    left: Left,
    panels: Panels,
    addends: Addends,
    next: Matrix,
    cores: Cores,
) {
    let next = Runs::of(next);
    cores.each(output.strips(Tile::ROWS).enumerate(), |(index, output)| {
        let ahead = Ahead::of(left.memory(index + 1).part(0, 1), next.part(index, left.number()));
        tile.multiply(output, left.strip(index), panels, addends, ahead);
    });
}
