//! Views of f32 slices as matrices, which may be parts of larger matrices ([`Matrix`], [`MatrixMut`]).

use std::marker::PhantomData;
use std::ops::Range;

/// A view of an f32 slice as a matrix, which may be transposed or a part of a larger matrix.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub(super) values: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Returns a view of `values` as a matrix of `rows` rows and `columns` columns. `stride` is the row stride in
    /// elements.
    ///
    /// # Panics
    /// Panics if the matrix does not lie in the slice.
    pub fn new(values: &'a [f32], [rows, columns]: [usize; 2], stride: usize) -> Self {
        let end = rows.saturating_sub(1).checked_mul(stride).and_then(|last| last.checked_add(columns));
        assert!(columns <= stride && end.is_some_and(|end| end <= values.len()), "the matrix must lie in the slice");
        Self { values, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// Returns the shape of this matrix view: its numbers of rows and columns.
    pub fn shape(self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// Returns this matrix's transpose as a view, without copying its elements.
    pub fn transposed(self) -> Self {
        let Self { values, rows, columns, row_stride, column_stride } = self;
        Self { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }

    /// Returns a view of this matrix's rows `range` (zero-based indices).
    pub fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let values = if range.is_empty() { &[] } else { &self.values[range.start * self.row_stride..] };
        Self { values, rows: range.len(), ..self }
    }

    /// Returns a view of this matrix's columns `range` (zero-based indices).
    pub fn columns(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.columns, "columns {range:?} of {}", self.columns);
        self.transposed().rows(range).transposed()
    }
}

/// A writable view of an f32 slice as a matrix, which may be a part of a larger matrix.
pub struct MatrixMut<'a> {
    pub(super) first: *mut f32,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) stride: usize,
    pub(super) of: PhantomData<&'a mut [f32]>,
}

// SAFETY: a `MatrixMut` borrows its elements exclusively: matrices that are split from one slice share no element.
unsafe impl Send for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// Adds `numbers`, which has one value per column, to every row.
    pub(super) fn add_to_rows(&mut self, numbers: &[f32]) {
        assert_eq!(numbers.len(), self.columns, "there must be a number for each column");
        for row in 0..self.rows {
            // SAFETY: the row lies in the slice that the matrix borrows exclusively.
            let row = unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.stride), self.columns) };
            row.iter_mut().zip(numbers).for_each(|(number, added)| *number += added);
        }
    }

    /// Splits a slice with rows of `stride` elements into writable matrices side by side, each with `columns` columns.
    ///
    /// # Panics
    /// Panics if `columns` is 0 or does not divide `stride`.
    pub fn side_by_side(
        values: &'a mut [f32],
        stride: usize,
        columns: usize,
    ) -> impl ExactSizeIterator<Item = Self> + 'a {
        assert!(columns > 0 && stride.is_multiple_of(columns), "{stride} columns do not divide by {columns}");
        let (first, rows) = (values.as_mut_ptr(), values.len() / stride);
        // Each piece has its own columns, and all columns lie within the slice.
        let piece = move |index: usize| Self {
            first: first.wrapping_add(index * columns),
            rows,
            columns,
            stride,
            of: PhantomData,
        };
        (0..stride / columns).map(piece)
    }

    /// Returns a writable view of a whole slice as a row-major matrix of `rows` rows and `columns` columns.
    ///
    /// # Panics
    /// Panics if the slice does not have `rows * columns` elements.
    pub fn whole(values: &'a mut [f32], [rows, columns]: [usize; 2]) -> Self {
        assert_eq!(Some(values.len()), rows.checked_mul(columns), "the matrix must fill the slice");
        Self { first: values.as_mut_ptr(), rows, columns, stride: columns, of: PhantomData }
    }

    /// Returns a writable view of this matrix's rows `range` (zero-based indices).
    pub fn rows(&mut self, range: Range<usize>) -> MatrixMut<'_> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        MatrixMut { first: self.first.wrapping_add(range.start * self.stride), rows: range.len(), ..*self }
    }

    /// Returns a writable view of this matrix's columns `range` (zero-based indices).
    pub fn columns(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.columns, "columns {range:?} of {}", self.columns);
        Self { first: self.first.wrapping_add(range.start), columns: range.len(), ..self }
    }
}
