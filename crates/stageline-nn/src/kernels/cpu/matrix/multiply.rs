//! Multiplies matrices with the crate `gemm`, and copies a right matrix whose columns evict each other from a core's
//! cache.

use std::marker::PhantomData;
use std::ops::Range;

use gemm::{Parallelism, gemm};

use super::view::{Matrix, MatrixMut};

/// The number of multiplications below which a matrix product uses one core. More cores would not make such a product
/// faster. burn-flex has the same bound.
const FOR_ONE_CORE: usize = 192 * 192 * 192;

/// The numbers of columns of the left matrix for which the crate `gemm` sums all products of an output element before
/// it adds the sum to the output. With more columns it adds the sum in several parts, and with fewer it adds every
/// product separately, so that the result is rounded differently.
const SUMMED_FIRST: Range<usize> = 3..513;

/// A distance between the stored rows of a matrix, in f32 numbers (1 KiB). Rows that begin at multiples of this
/// distance fall into few sets of a core's cache and evict each other. If the matrix is the transposed right matrix of
/// a product, `gemm` is slow, because it reads one number of each row in turn.
const SAME_SETS: usize = 256;

/// The smallest number of rows of a product's left matrix that makes a copy of the right matrix worth its time. The
/// copy avoids conflicts in a core's cache. With fewer rows, it would take more time than it saves.
const FEWEST_ROWS: usize = 16;

/// The number of unused f32 numbers after each row of a copied matrix: one cache line (64 bytes). It is doubled for
/// rows that would otherwise still begin in the same sets of a core's cache.
const APART: usize = 16;

/// The largest part of a product's right matrix, in f32 numbers, that is copied at once. The copy avoids conflicts in a
/// core's cache. A part of at most [`LEAST_COLUMNS`] columns may be larger.
const COPIED: usize = 1 << 20;

/// The smallest number of columns of a product's right matrix that are copied at once. The copy avoids conflicts in a
/// core's cache. Fewer columns would cost time, because `gemm` reads the left matrix again for each copy. Only the last
/// copy may have fewer.
const LEAST_COLUMNS: usize = 256;

impl<'a> Matrix<'a> {
    /// Returns the product of this matrix and the matrix `right` as a list of numbers, row by row. The product's bits
    /// do not depend on the number of cores.
    pub fn times(self, right: Matrix) -> Vec<f32> {
        let mut product = Vec::new();
        self.append_times(right, &mut product, self.parallelism(right));
        product
    }

    /// Adds the product of this matrix and the matrix `right` to the numbers `sum`, row by row. The result has the bits
    /// of adding the result of [`times`](Self::times), and they do not depend on the number of cores. Returns false and
    /// leaves the sum unchanged if the crate `gemm` would round otherwise, as it does for products with a vector.
    pub fn add_times_to(self, right: Matrix, sum: &mut [f32]) -> bool {
        let has_same_bits = SUMMED_FIRST.contains(&self.columns) && self.rows > 1 && right.columns > 1;
        if has_same_bits {
            let output = MatrixMut::whole(sum, [self.rows, right.columns]);
            multiply(output, self, right, true, self.parallelism(right));
        }
        has_same_bits
    }

    /// Returns whether one core or several compute the product of this matrix and the matrix `right`.
    fn parallelism(self, right: Matrix) -> Parallelism {
        let work = self.rows.saturating_mul(self.columns).saturating_mul(right.columns);
        if work < FOR_ONE_CORE { Parallelism::None } else { Parallelism::Rayon(0) }
    }

    /// Appends the product of this matrix and the matrix `right` to the list `output`, row by row, computed on one
    /// core.
    pub fn append_product(self, right: Matrix, output: &mut Vec<f32>) {
        self.append_times(right, output, Parallelism::None);
    }

    /// Appends the product of this matrix and the matrix `right` to the list `output`, row by row. `parallelism` says
    /// whether one core or several compute it.
    fn append_times(self, right: Matrix, output: &mut Vec<f32>, parallelism: Parallelism) {
        let (rows, columns) = (self.rows, right.columns);
        output.reserve(rows * columns);
        let first = output.spare_capacity_mut().as_mut_ptr().cast();
        multiply(MatrixMut { first, rows, columns, stride: columns, of: PhantomData }, self, right, false, parallelism);
        // SAFETY: `reserve` made room for `rows * columns` numbers, and `multiply` has written all of them.
        unsafe { output.set_len(output.len() + rows * columns) };
    }

    /// Returns this matrix for use as the transposed right matrix of several products. If its rows would evict each
    /// other from a core's cache, and there are at least [`FEWEST_ROWS`] of them, it is first copied into the list
    /// `copy`, once for all products. The result is then a view of the copy.
    pub fn spread(self, copy: &'a mut Vec<f32>) -> Self {
        if self.evicts_itself() && self.rows >= FEWEST_ROWS { self.copied_apart(copy) } else { self }
    }

    /// Whether the rows evict each other from a core's cache when one number of each is read in turn.
    fn evicts_itself(self) -> bool {
        self.column_stride == 1 && self.row_stride.is_multiple_of(SAME_SETS)
    }

    /// Copies the rows of a matrix into the list `copy`, with unused numbers after each row, so that consecutive rows
    /// begin in different sets of a core's cache. Returns a view of the copy. The matrix must not be a transposed view.
    fn copied_apart(self, copy: &mut Vec<f32>) -> Matrix<'_> {
        let is_close = (self.columns + APART).is_multiple_of(SAME_SETS);
        let stride = self.columns + if is_close { 2 * APART } else { APART };
        copy.clear();
        copy.reserve(self.rows * stride);
        for row in 0..self.rows {
            copy.extend_from_slice(&self.values[row * self.row_stride..][..self.columns]);
            copy.resize((row + 1) * stride, 0.0);
        }
        Matrix::new(copy, [self.rows, self.columns], stride)
    }
}

impl MatrixMut<'_> {
    /// Overwrites a matrix with the product of the matrices `left` and `right`, computed on one core.
    pub fn set_product(&mut self, left: Matrix, right: Matrix) {
        multiply(self.rows(0..self.rows), left, right, false, Parallelism::None);
    }

    /// Adds the product of the matrices `left` and `right` to a matrix, computed on one core.
    pub fn add_product(&mut self, left: Matrix, right: Matrix) {
        multiply(self.rows(0..self.rows), left, right, true, Parallelism::None);
    }
}

/// Writes the matrix product of `left` and `right` to `output`, or adds the product to `output` if `add` is set. Panics
/// if the shapes of the three matrices do not fit each other or contain a zero.
///
/// The columns of `right` may evict each other from a core's cache. This happens if `right` is stored column by column
/// and its columns begin at multiples of [`SAME_SETS`] numbers. If `left` has at least [`FEWEST_ROWS`] rows, such
/// columns are first copied, with [`APART`] unused numbers after each column.
fn multiply(mut output: MatrixMut, left: Matrix, right: Matrix, add: bool, parallelism: Parallelism) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_parts_match_the_definition() {
        // The numbers are small integers, so that all products are exact.
        let numbers = |count: usize| (0..count).map(|index| (index * 7 % 11) as f32 - 5.0).collect::<Vec<_>>();
        let (left, right) = (numbers(6 * 9), numbers(8 * 4));
        let (left, right) = (Matrix::new(&left[2..], [6, 4], 9), Matrix::new(&right, [8, 4], 4));
        let at = |matrix: Matrix, row: usize, column: usize| {
            matrix.values[row * matrix.row_stride + column * matrix.column_stride]
        };
        let (left, right) = (left.rows(1..4), right.rows(3..8).transposed());
        let mut output = numbers(5 * 10);
        let before = output.clone();
        {
            let mut pieces: Vec<_> = MatrixMut::side_by_side(&mut output, 10, 5).collect();
            pieces[1].rows(2..5).add_product(left, right);
            pieces[0].rows(0..3).set_product(left, right);
        }
        for (row, column) in (0..5).flat_map(|row| (0..10).map(move |column| (row, column))) {
            let product =
                |row: usize, column: usize| (0..4).map(|k| at(left, row, k) * at(right, k, column)).sum::<f32>();
            let was = before[row * 10 + column];
            let expected = match (row, column) {
                (0..3, 0..5) => product(row, column),
                (2..5, 5..10) => was + product(row - 2, column - 5),
                _ => was,
            };
            assert_eq!(output[row * 10 + column], expected, "{row}, {column}");
            let appended = (2..5).contains(&row) && (5..10).contains(&column);
            if appended {
                assert_eq!(left.times(right)[(row - 2) * 5 + column - 5], product(row - 2, column - 5));
            }
        }
        let mut behind = vec![7.0];
        left.append_product(right, &mut behind);
        assert_eq!((behind[0], &behind[1..]), (7.0, &left.times(right)[..]));
    }

    #[test]
    fn a_product_on_several_cores_is_the_same_bits_as_on_one() {
        const SIZE: usize = 210;
        let numbers =
            |salt: usize| (0..SIZE * SIZE).map(|index| ((index * salt % 1009) as f32).sin()).collect::<Vec<_>>();
        let (left, right) = (numbers(7), numbers(11));
        let product = |cores| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build().unwrap();
            let matrix = |numbers| Matrix::new(numbers, [SIZE, SIZE], SIZE);
            pool.install(|| matrix(&left).times(matrix(&right).transposed()))
        };
        let one: Vec<_> = product(1).into_iter().map(f32::to_bits).collect();
        const { assert!(SIZE * SIZE * SIZE > FOR_ONE_CORE) };
        for cores in [2, 3] {
            assert!(product(cores).into_iter().map(f32::to_bits).eq(one.iter().copied()), "{cores} cores");
        }
    }

    /// Tests that copying the right matrix of a product, at once, in parts or beforehand, keeps the product's bits. The
    /// product is compared with one of the same matrices that needs no copy, because its right matrix has another
    /// layout.
    #[test]
    fn a_product_with_copies_is_the_same_bits_as_one_without() {
        let numbers = |salt: usize, count: usize| {
            (0..count).map(|index| ((index * salt % 1009) as f32).sin()).collect::<Vec<_>>()
        };
        for (inner, columns) in [(256, 5), (512, 40), (4096, 300)] {
            const ROWS: usize = FEWEST_ROWS + 3;
            let (left, right) = (numbers(7, ROWS * inner), numbers(11, columns * inner));
            let left = Matrix::new(&left, [ROWS, inner], inner);
            let stored = Matrix::new(&right, [columns, inner], inner);
            let (mut apart, mut copy) = (Vec::new(), Vec::new());
            let apart = stored.copied_apart(&mut apart).transposed();
            assert!(!apart.column_stride.is_multiple_of(SAME_SETS));
            let bits = |product: Vec<f32>| product.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let spread = stored.spread(&mut copy);
            assert_eq!(spread.evicts_itself(), columns < FEWEST_ROWS);
            for right in [stored, spread] {
                assert_eq!(bits(left.times(right.transposed())), bits(left.times(apart)), "{inner} x {columns}");
            }
        }
        let (close, mut copy) = (numbers(7, 20 * SAME_SETS), Vec::new());
        assert!(!Matrix::new(&close, [20, SAME_SETS - APART], SAME_SETS).spread(&mut copy).evicts_itself());
        const { assert!(COPIED / 4096 < 300) };
    }

    #[test]
    fn a_product_added_to_a_sum_has_the_bits_of_a_separate_addition() {
        let numbers = |salt: usize, count: usize| {
            (0..count).map(|index| ((index * salt % 1009) as f32).sin()).collect::<Vec<_>>()
        };
        let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let outputs = [[1, 1], [1, 200], [2, 1], [2, 2], [7, 17], [64, 200], [65, 2], [130, 200]];
        for ([rows, columns], inner) in
            outputs.into_iter().flat_map(|of| [2, 3, 5, 33, 512, 513].map(|inner| (of, inner)))
        {
            let (left, right, mut sum) =
                (numbers(7, inner * rows), numbers(11, inner * columns), numbers(13, rows * columns));
            let left = Matrix::new(&left, [inner, rows], rows).transposed();
            let right = Matrix::new(&right, [inner, columns], columns);
            let has_same_bits = rows > 1 && columns > 1 && (3..=512).contains(&inner);
            let product = if has_same_bits { left.times(right) } else { vec![-0.0; rows * columns] };
            let expected = sum.iter().zip(product).map(|(sum, new)| sum + new).collect();
            assert_eq!(left.add_times_to(right, &mut sum), has_same_bits);
            assert_eq!(bits(sum), bits(expected), "{rows} x {inner} x {columns}");
        }
    }

    #[test]
    #[should_panic = "are not the shapes of a product"]
    fn shapes_that_do_not_fit_are_rejected() {
        let numbers = [1.0; 6];
        let matrix = Matrix::new(&numbers, [2, 3], 3);
        MatrixMut::whole(&mut [0.0; 4], [2, 2]).set_product(matrix, matrix);
    }
}
