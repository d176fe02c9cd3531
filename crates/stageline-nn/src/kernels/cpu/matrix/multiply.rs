//! Multiplies two matrices with the crate `gemm`, and copies a right matrix whose columns evict each other from a core's
//! cache.

use gemm::{Parallelism, gemm};

use super::{FEWEST_ROWS, Matrix, MatrixMut};

/// The largest part of a product's right matrix, in f32 numbers, that is copied at once. The copy avoids conflicts in a
/// core's cache. A part of at most [`LEAST_COLUMNS`] columns may be larger.
pub(super) const COPIED: usize = 1 << 20;

/// The smallest number of columns of a product's right matrix that are copied at once. The copy avoids conflicts in a
/// core's cache. Fewer columns would cost time, because `gemm` reads the left matrix again for each copy. Only the last
/// copy may have fewer.
const LEAST_COLUMNS: usize = 256;

/// Writes the matrix product of `left` and `right` to `output`, or adds the product to `output` if `add` is set. Panics
/// if the shapes of the three matrices do not fit each other or contain a zero.
///
/// The columns of `right` may evict each other from a core's cache. This happens if `right` is stored column by column
/// and its columns begin at multiples of [`SAME_SETS`](super::SAME_SETS) numbers. If `left` has at least [`FEWEST_ROWS`] rows, such
/// columns are first copied, with [`APART`](super::APART) unused numbers after each column.
pub(super) fn multiply(mut output: MatrixMut, left: Matrix, right: Matrix, add: bool, parallelism: Parallelism) {
    let shapes = [[left.rows, left.columns], [right.rows, right.columns], [output.rows, output.columns]];
    let fits = left.columns == right.rows && left.rows == output.rows && right.columns == output.columns;
    assert!(fits && shapes.iter().flatten().all(|size| *size > 0), "{shapes:?} are not the shapes of a product");
    if !right.transposed().evicts_itself() || left.rows < FEWEST_ROWS {
        // SAFETY: the shapes fit.
        return unsafe { multiply_in_place(output, left, right, add, parallelism) };
    }
    let (stored, at_once, mut copy) = (right.transposed(), (COPIED / right.rows).max(LEAST_COLUMNS), Vec::new());
    for first in (0..right.columns).step_by(at_once) {
        let columns = first..right.columns.min(first + at_once);
        let part = stored.rows(columns.clone()).copied_apart(&mut copy).transposed();
        // SAFETY: the shapes fit, and the part has the same columns as the part of the output.
        unsafe { multiply_in_place(output.columns(columns), left, part, add, parallelism) };
    }
}

/// Writes or adds the matrix product of `left` and `right` to `output` as [`multiply`] does, but without copying
/// `right`.
///
/// # Safety
/// The shapes must fit: `left` has as many columns as `right` has rows, and `output` has the rows of `left` and the
/// columns of `right`.
unsafe fn multiply_in_place(output: MatrixMut, left: Matrix, right: Matrix, add: bool, parallelism: Parallelism) {
    let strides = |matrix: Matrix| (matrix.column_stride as isize, matrix.row_stride as isize);
    let ((left_columns, left_rows), (right_columns, right_rows)) = (strides(left), strides(right));
    // SAFETY: `Matrix` was checked to lie in its slice, so every number of `left` and `right` is valid. The numbers of
    // `output` are in a slice, or in a vector's spare capacity, that is borrowed exclusively for it. By this function's
    // contract the shapes fit each other. Spare capacity may be uninitialised, because without `add` the product does
    // not read `output`.
    unsafe {
        gemm(
            output.rows,
            output.columns,
            left.columns,
            output.first,
            1,
            output.stride as isize,
            add,
            left.values.as_ptr(),
            left_columns,
            left_rows,
            right.values.as_ptr(),
            right_columns,
            right_rows,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
