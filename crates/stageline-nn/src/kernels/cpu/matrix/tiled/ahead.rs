//! Asks the processor to load numbers before they are used ([`Ahead`]).

use std::arch::x86_64::_MM_HINT_T1;

use super::super::view::Matrix;
use super::cache::{LINE, prefetch};

/// Loads a matrix into a core's L2 cache while the core computes tiles, a few cache lines with each tile. A copy of the
/// matrix then does not wait for the memory.
pub struct Ahead<'a> {
    /// The matrix or its transpose: the one whose rows have consecutive numbers.
    rows: Matrix<'a>,
    /// The number of cache lines of a row.
    of_a_row: usize,
    /// The number of cache lines that are loaded with each tile.
    of_a_tile: usize,
}

impl<'a> Ahead<'a> {
    /// Prepares to load `matrix`, which may be empty, while `tiles` tiles are computed.
    pub fn of(matrix: Matrix<'a>, tiles: usize) -> Self {
        let rows = if matrix.column_stride == 1 { matrix } else { matrix.transposed() };
        // A row begins within a cache line.
        let of_a_row = rows.columns.div_ceil(LINE) + 1;
        let lines = if rows.columns == 0 { 0 } else { rows.rows * of_a_row };
        Self { rows, of_a_row, of_a_tile: lines.div_ceil(tiles) }
    }

    /// Returns the loading of the matrix from the tile with the index `tile` (from 0) on.
    pub fn from(&self, tile: usize) -> Loading<'_> {
        let first = tile * self.of_a_tile;
        Loading { matrix: self, row: first / self.of_a_row, line: first % self.of_a_row }
    }
}

/// The loading of a matrix with consecutive tiles.
pub struct Loading<'a> {
    matrix: &'a Ahead<'a>,
    /// The row, and the cache line in this row, that are loaded next.
    row: usize,
    line: usize,
}

impl Loading<'_> {
    /// Asks the processor to load the cache lines that belong to the next tile.
    pub fn load(&mut self) {
        let Ahead { rows, of_a_row, of_a_tile } = self.matrix;
        for _ in 0..*of_a_tile {
            if self.row >= rows.rows {
                return;
            }
            let column = (self.line * LINE).min(rows.columns - 1);
            let number = rows.values.as_ptr().wrapping_add(self.row * rows.row_stride + column);
            prefetch::<_MM_HINT_T1>(number);
            self.line += 1;
            if self.line == *of_a_row {
                (self.row, self.line) = (self.row + 1, 0);
            }
        }
    }
}
