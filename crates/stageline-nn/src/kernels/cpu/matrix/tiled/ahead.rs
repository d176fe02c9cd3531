//! Prefetches the numbers of matrices into a core's cache before they are used ([`Ahead`]).

use std::arch::x86_64::_MM_HINT_T1;

use super::super::view::Matrix;
use super::cache::{LINE, prefetch};

/// The number of consecutive cache lines in a run. A run is prefetched at once.
const RUN: usize = 3;

/// A matrix, divided into runs of consecutive cache lines, which are prefetched run by run.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    /// The matrix itself, or its transpose if only the transpose has rows of consecutive numbers in memory.
    rows: Matrix<'a>,
    /// The number of runs in a row of the matrix `rows`.
    of_a_row: usize,
}

impl<'a> Runs<'a> {
    /// Divides a matrix into runs of cache lines. The matrix may be empty.
    pub fn of(matrix: Matrix<'a>) -> Self {
        let rows = if matrix.column_stride == 1 { matrix } else { matrix.transposed() };
        // A row may begin in the middle of a cache line, and so may need one more line.
        Self { rows, of_a_row: (rows.columns.div_ceil(LINE) + 1).div_ceil(RUN) }
    }

    /// Divides the runs into `parts` equal parts, and returns the one with the index `index` (from 0). Late parts may
    /// have fewer runs.
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

/// The consecutive runs of a matrix that are still to be prefetched.
pub struct Part {
    /// The address of the first number of the next run. It may lie beyond the matrix.
    next: *const f32,
    /// The number of runs that are still to be prefetched.
    left: usize,
    /// The number of runs that are left in the current row of the matrix.
    left_in_row: usize,
    /// The number of runs in a row of the matrix.
    of_a_row: usize,
    /// The distance, in f32 numbers, from the end of a row's last run to the beginning of the next row. It is negative,
    /// and wraps around, if the last run reaches into the next row.
    to_next_row: usize,
}

/// Prefetches parts of two matrices into a core's L2 cache while the core computes tiles. A kernel calls
/// [`load`](Self::load) between its products. So few loads at a time are under way, and no instruction waits for them.
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
