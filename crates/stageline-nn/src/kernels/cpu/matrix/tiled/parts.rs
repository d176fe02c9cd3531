//! Splits matrices and index ranges into parts, which are copied or computed one by one or in parallel.

use std::ops::Range;

use super::super::view::{Matrix, MatrixMut};

/// Splits the range `0..all` into consecutive ranges of `size` indices. The last range may be shorter.
pub fn parts(all: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..all).step_by(size).map(move |first| first..all.min(first + size))
}

impl Matrix<'_> {
    /// Splits this matrix into strips of `rows` consecutive rows. The last strip may have fewer.
    pub fn strips(self, rows: usize) -> impl Iterator<Item = Self> {
        parts(self.rows, rows).map(move |rows| self.rows(rows))
    }
}

impl MatrixMut<'_> {
    /// Splits this writable matrix into strips of `rows` consecutive rows. The last strip may have fewer.
    pub fn strips(self, rows: usize) -> impl Iterator<Item = Self> {
        let Self { first, rows: all, columns, stride, of } = self;
        parts(all, rows).map(move |rows| {
            let first = first.wrapping_add(rows.start * stride);
            Self { first, rows: rows.len(), columns, stride, of }
        })
    }
}
