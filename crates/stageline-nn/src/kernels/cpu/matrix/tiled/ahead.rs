//! Asks the processor to load numbers before they are used ([`Ahead`]).

use std::arch::x86_64::_MM_HINT_T1;

use super::super::view::Matrix;
use super::cache::{LINE, prefetch};

/// The number of cache lines that are loaded at once.
const RUN: usize = 3;

/// The runs of cache lines in which a matrix is loaded.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    /// The matrix or its transpose: the one whose rows have consecutive numbers.
    rows: Matrix<'a>,
    /// The number of runs in a row.
    of_a_row: usize,
}

impl<'a> Runs<'a> {
    /// Returns the runs of `matrix`, which may be empty.
    pub fn of(matrix: Matrix<'a>) -> Self {
        let rows = if matrix.column_stride == 1 { matrix } else { matrix.transposed() };
        // A row begins within a cache line.
        Self { rows, of_a_row: (rows.columns.div_ceil(LINE) + 1).div_ceil(RUN) }
    }

    /// Returns the part with the index `index` (from 0) of `parts` equal parts of all runs.
    pub fn part(self, index: usize, parts: usize) -> Part {
        let all = if self.rows.columns == 0 { 0 } else { self.rows.rows * self.of_a_row };
        let of_a_part = all.div_ceil(parts);
        let first = index * of_a_part;
        let (row, run) = (first / self.of_a_row, first % self.of_a_row);
        Part {
            next: self.rows.values.as_ptr().wrapping_add(row * self.rows.row_stride + run * RUN * LINE),
            left: of_a_part.min(all.saturating_sub(first)),
            left_in_row: self.of_a_row - run,
            of_a_row: self.of_a_row,
            to_next_row: self.rows.row_stride.wrapping_sub(self.of_a_row * RUN * LINE),
        }
    }
}

/// A part of the runs of a matrix.
pub struct Part {
    /// The first number of the run that is loaded next. It may lie beyond the matrix.
    next: *const f32,
    /// The number of runs that are left.
    left: usize,
    /// The number of runs that are left in this row.
    left_in_row: usize,
    /// The number of runs in a row.
    of_a_row: usize,
    /// The distance, in f32 numbers, from the end of a row's last run to the beginning of the next row. It is negative,
    /// and wraps around, if the last run reaches into the next row.
    to_next_row: usize,
}

/// Loads parts of two matrices into a core's L2 cache while the core computes tiles. A kernel calls
/// [`load`](Self::load) between its products, so that few loads at a time are under way and no instruction waits for
/// them.
pub struct Ahead {
    now: Part,
    later: Part,
}

impl Ahead {
    /// Prepares to load all of `first`, and then `second`.
    pub fn of(first: Runs, second: Part) -> Self {
        Self { now: first.part(0, 1), later: second }
    }

    /// Asks the processor to load the next run. Returns false if none is left.
    #[inline(always)]
    pub fn load(&mut self) -> bool {
        if self.now.left == 0 {
            std::mem::swap(&mut self.now, &mut self.later);
            if self.now.left == 0 {
                return false;
            }
        }
        let now = &mut self.now;
        for line in 0..RUN {
            prefetch::<_MM_HINT_T1>(now.next.wrapping_add(line * LINE));
        }
        now.next = now.next.wrapping_add(RUN * LINE);
        now.left -= 1;
        now.left_in_row -= 1;
        if now.left_in_row == 0 {
            now.left_in_row = now.of_a_row;
            now.next = now.next.wrapping_add(now.to_next_row);
        }
        true
    }
}
