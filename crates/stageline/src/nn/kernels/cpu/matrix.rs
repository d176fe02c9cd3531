//! Matrices that lie within others, and products of them.

use std::marker::PhantomData;
use std::ops::Range;

use gemm::{Parallelism, gemm};

/// Products of fewer multiplications are not worth another core: burn-flex's bound.
const FOR_ONE_CORE: usize = 192 * 192 * 192;

/// Numbers of a slice, seen as a matrix.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// The first columns of rows that begin `stride` numbers from each other.
    pub(super) fn new(values: &'a [f32], [rows, columns]: [usize; 2], stride: usize) -> Self {
        let end = rows.saturating_sub(1).checked_mul(stride).and_then(|last| last.checked_add(columns));
        assert!(columns <= stride && end.is_some_and(|end| end <= values.len()), "it lies in the slice");
        Self { values, rows, columns, row_stride: stride, column_stride: 1 }
    }

    pub(super) fn shape(self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    pub(super) fn transposed(self) -> Self {
        let Self { values, rows, columns, row_stride, column_stride } = self;
        Self { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }

    /// The product, row by row. On several cores it is the same bits as on one.
    pub(super) fn times(self, right: Matrix) -> Vec<f32> {
        let work = self.rows.saturating_mul(self.columns).saturating_mul(right.columns);
        let parallelism = if work < FOR_ONE_CORE { Parallelism::None } else { Parallelism::Rayon(0) };
        let mut product = Vec::new();
        self.append_times(right, &mut product, parallelism);
        product
    }

    /// The same behind other numbers, on one core.
    pub(super) fn append_product(self, right: Matrix, output: &mut Vec<f32>) {
        self.append_times(right, output, Parallelism::None);
    }

    fn append_times(self, right: Matrix, output: &mut Vec<f32>, parallelism: Parallelism) {
        let (rows, columns) = (self.rows, right.columns);
        output.reserve(rows * columns);
        let first = output.spare_capacity_mut().as_mut_ptr().cast();
        multiply(
            MatrixMut { first, rows, columns, stride: columns, of: PhantomData },
            self,
            right,
            (false, parallelism),
        );
        // SAFETY: there is room for them, and the product has written all of them.
        unsafe { output.set_len(output.len() + rows * columns) };
    }

    /// Some of the rows.
    pub(super) fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let values = if range.is_empty() { &[] } else { &self.values[range.start * self.row_stride..] };
        Self { values, rows: range.len(), ..self }
    }
}

/// The same, to write into.
pub(super) struct MatrixMut<'a> {
    first: *mut f32,
    rows: usize,
    columns: usize,
    stride: usize,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: nobody else has its numbers.
unsafe impl Send for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// Cuts rows of `stride` numbers into matrices of as many columns each.
    pub(super) fn side_by_side(
        values: &'a mut [f32],
        stride: usize,
        columns: usize,
    ) -> impl ExactSizeIterator<Item = Self> + 'a {
        assert!(columns > 0 && stride.is_multiple_of(columns), "{stride} columns are cut into {columns} each");
        let (first, rows) = (values.as_mut_ptr(), values.len() / stride);
        // Every piece has columns of its own, all of them within the slice.
        let piece = move |index: usize| Self {
            first: first.wrapping_add(index * columns),
            rows,
            columns,
            stride,
            of: PhantomData,
        };
        (0..stride / columns).map(piece)
    }

    /// All of a slice, row by row.
    pub(super) fn whole(values: &'a mut [f32], [rows, columns]: [usize; 2]) -> Self {
        assert_eq!(Some(values.len()), rows.checked_mul(columns), "it is the slice");
        Self { first: values.as_mut_ptr(), rows, columns, stride: columns, of: PhantomData }
    }

    /// Some of the rows.
    pub(super) fn rows(&mut self, range: Range<usize>) -> MatrixMut<'_> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        MatrixMut { first: self.first.wrapping_add(range.start * self.stride), rows: range.len(), ..*self }
    }

    /// Becomes a product.
    pub(super) fn set_product(&mut self, left: Matrix, right: Matrix) {
        multiply(self.rows(0..self.rows), left, right, (false, Parallelism::None));
    }

    /// Adds a product.
    pub(super) fn add_product(&mut self, left: Matrix, right: Matrix) {
        multiply(self.rows(0..self.rows), left, right, (true, Parallelism::None));
    }
}

/// Writes a product, or adds it to what there is.
fn multiply(output: MatrixMut, left: Matrix, right: Matrix, (add, parallelism): (bool, Parallelism)) {
    let shapes = [[left.rows, left.columns], [right.rows, right.columns], [output.rows, output.columns]];
    let fits = left.columns == right.rows && left.rows == output.rows && right.columns == output.columns;
    assert!(fits && shapes.iter().flatten().all(|size| *size > 0), "{shapes:?} are no matrices of a product");
    let strides = |matrix: Matrix| (matrix.column_stride as isize, matrix.row_stride as isize);
    let ((left_columns, left_rows), (right_columns, right_rows)) = (strides(left), strides(right));
    // SAFETY: every number of `left` and `right` is in its slice, as `Matrix` was made so; those of `output` are in a
    // slice that is borrowed for it alone, or in room that is; and the shapes fit each other. What is not read before
    // it is written need not be a number yet.
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
    fn products_of_parts_are_those_of_the_definition() {
        // Of small whole numbers, so exact.
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

    #[test]
    #[should_panic = "are no matrices of a product"]
    fn what_does_not_fit_is_refused() {
        let numbers = [1.0; 6];
        let matrix = Matrix::new(&numbers, [2, 3], 3);
        MatrixMut::whole(&mut [0.0; 4], [2, 2]).set_product(matrix, matrix);
    }
}
