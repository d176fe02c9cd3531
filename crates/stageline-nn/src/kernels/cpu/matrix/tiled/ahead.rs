//! Prefetches matrix elements into a core's cache before a kernel uses them ([`Ahead`]).

use std::arch::x86_64::_MM_HINT_T1;

use super::super::view::Matrix;
use super::cache::{LINE, prefetch};

/// The number of consecutive cache lines that are prefetched together, as one run.
const RUN: usize = 3;

/// A matrix divided into runs of consecutive cache lines, so that a kernel can prefetch the matrix run by run while it
/// computes.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    /// The matrix itself or, if only its transpose has contiguous rows, the transpose.
    rows: Matrix<'a>,
    /// Number of runs (groups of consecutive cache lines) in each row of `rows`.
    of_a_row: usize,
}

impl<'a> Runs<'a> {
    /// Divides a matrix into runs of consecutive cache lines. The matrix may be empty.
    pub fn of(matrix: Matrix<'a>) -> Self {
        let rows = if matrix.column_stride == 1 { matrix } else { matrix.transposed() };
        // A row may begin in the middle of a cache line, and so may span one more line.
        Self { rows, of_a_row: (rows.columns.div_ceil(LINE) + 1).div_ceil(RUN) }
    }

    /// Divides the runs (groups of cache lines) into `parts` equal parts, and returns the part `index` (from 0). The
    /// last parts may have fewer runs.
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

/// A part of a matrix that a kernel still has to prefetch, run by run. A run is a group of consecutive cache lines.
pub struct Part {
    /// Address of the first element of the next run (group of cache lines) to prefetch, which may lie beyond the
    /// matrix.
    next: *const f32,
    /// Number of runs (groups of cache lines) of this part that are not prefetched yet.
    left: usize,
    /// Number of runs (groups of cache lines) in the current matrix row that are not prefetched yet.
    left_in_row: usize,
    /// Number of runs (groups of cache lines) in each row of the matrix.
    of_a_row: usize,
    /// Offset, in f32 elements, from the end of a row's last run (group of cache lines) to the start of the next row.
    /// It is negative (wrapped around) if the last run extends into the next row.
    to_next_row: usize,
}

/// Prefetches two matrices, or parts of them, into a core's L2 cache while the core computes tiles. A kernel calls
/// [`load`](Self::load) between its multiplications, so that few prefetches are in flight at a time and no instruction
/// waits for them.
pub struct Ahead {
    now: Part,
    later: Part,
}

impl Ahead {
    /// Prepares to prefetch a part of one matrix, and after it a part of another.
    pub fn of(first: Part, second: Part) -> Self {
        Self { now: first, later: second }
    }

    /// Prefetches nothing.
    pub fn nothing() -> Self {
        const NOTHING: Part = Part { next: std::ptr::null(), left: 0, left_in_row: 0, of_a_row: 0, to_next_row: 0 };
        Self { now: NOTHING, later: NOTHING }
    }

    /// Prefetches the next run of cache lines, if one is left.
    #[inline(always)]
    pub fn load(&mut self) {
        if self.now.left == 0 {
            if self.later.left == 0 {
                return;
            }
            std::mem::swap(&mut self.now, &mut self.later);
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
    }
}
