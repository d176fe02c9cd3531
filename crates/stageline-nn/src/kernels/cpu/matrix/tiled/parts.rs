//! The parts of matrices and of ranges from which a product is computed.

use std::ops::Range;

use super::super::view::{Matrix, MatrixMut};

/// Splits the range `0..all` into consecutive ranges of `size` numbers, and returns them in order. The last range may
/// be shorter.
pub fn parts(all: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..all).step_by(size).map(move |first| first..all.min(first + size))
}

impl Matrix<'_> {
    /// Returns a view of the columns with the indices `range` (from 0) of a matrix.
    pub fn columns(self, range: Range<usize>) -> Self {
        self.transposed().rows(range).transposed()
    }

    /// Splits a matrix into pieces of `rows` rows, the last of which may have fewer.
    pub fn strips(self, rows: usize) -> impl Iterator<Item = Self> {
        parts(self.rows, rows).map(move |rows| self.rows(rows))
    }
}

impl MatrixMut<'_> {
    /// Returns a writable view of the columns with the indices `range` (from 0) of a matrix.
    pub fn columns(&mut self, range: Range<usize>) -> MatrixMut<'_> {
        assert!(range.start <= range.end && range.end <= self.columns, "columns {range:?} of {}", self.columns);
        MatrixMut { first: self.first.wrapping_add(range.start), columns: range.len(), ..*self }
    }

    /// Splits a writable matrix into pieces of `rows` rows, the last of which may have fewer.
    pub fn strips(self, rows: usize) -> impl Iterator<Item = Self> {
        let Self { first, rows: all, columns, stride, of } = self;
        parts(all, rows).map(move |rows| {
            let first = first.wrapping_add(rows.start * stride);
            Self { first, rows: rows.len(), columns, stride, of }
        })
    }
}
