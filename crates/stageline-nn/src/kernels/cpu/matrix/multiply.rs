//! Multiplies matrices: in register tiles if the left matrix has enough rows and the processor has AVX2 or AVX-512,
//! otherwise with the crate `gemm`.

use std::marker::PhantomData;
use std::ops::Range;

use gemm::{Parallelism, gemm};

use super::super::huge_pages::remember;
use super::addends::Addends;
use super::cores::Cores;
#[cfg(target_arch = "x86_64")]
use super::tiled;
use super::view::{Matrix, MatrixMut};

/// Number of multiplications below which a matrix product runs single-threaded, because more threads would not make it
/// faster. burn-flex uses the same bound.
const FOR_ONE_CORE: usize = 192 * 192 * 192;

/// Inner dimensions (columns of the left matrix) for which `sum += left @ right` has the same bits as computing the
/// product first and then adding it. With these, all products of an output element are summed before the output is
/// added. With a larger one, several partial sums are added to the output one by one, and with a smaller one `gemm`
/// adds each product separately, so both round differently.
const SUMMED_FIRST: Range<usize> = 3..513;

/// Smallest number of left-matrix rows for which a product is computed in register tiles. With fewer rows, packing the
/// right matrix would take more time than the tiles save.
const FEWEST_ROWS: usize = 16;

/// Allocates this thread's buffers for matrix products, so that its first product need not: those of the tiled kernels,
/// and the one of the crate `gemm`, which is as large as a core's L2 cache.
pub fn allocate_buffers() {
    #[cfg(target_arch = "x86_64")]
    if tiled::Tile::of_processor().is_some() {
        tiled::allocate_buffers();
    }
    // This product has too few rows for tiles, so `gemm` computes it. Its right matrix consists of whole SIMD vectors,
    // because only then does `gemm` use the buffer that it keeps for later products.
    const COLUMNS: usize = 64;
    let zeros = [0.0; COLUMNS * COLUMNS];
    let right = Matrix::new(&zeros, [COLUMNS, COLUMNS], COLUMNS);
    drop(right.rows(0..FEWEST_ROWS - 1).times(right));
}

impl Matrix<'_> {
    /// Returns `self @ right` as a row-major matrix. Its bits do not depend on the number of threads.
    pub fn times(self, right: Matrix) -> Vec<f32> {
        self.product(right, None, self.cores(right))
    }

    /// Returns `self @ right + bias` as a row-major matrix; `bias` is added to every row. The result has the same bits
    /// as adding the bias to the result of [`times`](Self::times).
    ///
    /// # Panics
    /// Panics if the bias does not have a value for each column of `right`.
    pub fn times_plus(self, right: Matrix, bias: &[f32]) -> Vec<f32> {
        self.product(right, Some(bias), self.cores(right))
    }

    /// Computes `sum += self @ right` in place, for a row-major matrix `sum`, and returns true. The result has the same
    /// bits as adding the result of [`times`](Self::times), on any number of threads. Returns false and leaves `sum`
    /// unchanged if the crate `gemm` might round differently, as it does for matrix-vector products. The caller must
    /// then add the result of `times`.
    pub fn add_times_to(self, right: Matrix, sum: &mut [f32]) -> bool {
        let has_same_bits = SUMMED_FIRST.contains(&self.columns) && self.rows > 1 && right.columns > 1;
        if has_same_bits {
            let output = MatrixMut::whole(sum, [self.rows, right.columns]);
            multiply(output, self, right, Addends { output: true, bias: None }, self.cores(right));
        }
        has_same_bits
    }

    /// Chooses how the product of this matrix and `right` is computed: in parallel if it is large, and single-threaded
    /// otherwise.
    fn cores(self, right: Matrix) -> Cores {
        let work = self.rows.saturating_mul(self.columns).saturating_mul(right.columns);
        if work < FOR_ONE_CORE { Cores::This } else { Cores::OfPool }
    }

    /// Returns `self @ right + bias` as a row-major matrix; `bias` is added to every row. `cores` selects one thread or
    /// all threads of the current rayon pool.
    fn product(self, right: Matrix, bias: Option<&[f32]>, cores: Cores) -> Vec<f32> {
        let (rows, columns) = (self.rows, right.columns);
        let mut output = Vec::with_capacity(rows * columns);
        let first = output.spare_capacity_mut().as_mut_ptr().cast();
        let product = MatrixMut { first, rows, columns, stride: columns, of: PhantomData };
        multiply(product, self, right, Addends { output: false, bias }, cores);
        // SAFETY: the vector has room for `rows * columns` numbers, and `multiply` has written all of them.
        unsafe { output.set_len(rows * columns) };
        output
    }
}

/// Computes `output = left @ right + addends`, single-threaded or in parallel as `cores` selects. Panics if the shapes
/// of the matrices and the bias do not match, or contain a zero.
fn multiply(mut output: MatrixMut, left: Matrix, right: Matrix, addends: Addends, cores: Cores) {
    check_shapes(left, right, &output);
    let biases = addends.bias.map_or(output.columns, <[f32]>::len);
    assert_eq!(biases, output.columns, "the bias must have one element for each output");
    let end_of_output = output.first.wrapping_add(output.rows * output.stride);
    [left.values.as_ptr_range(), right.values.as_ptr_range(), output.first.cast_const()..end_of_output]
        .into_iter()
        .for_each(remember);
    #[cfg(target_arch = "x86_64")]
    if left.rows >= FEWEST_ROWS
        && let Some(tile) = tiled::Tile::of_processor()
    {
        return tiled::multiply(tile, output, left, right, addends, cores);
    }
    let rows = 0..output.rows;
    // SAFETY: `check_shapes` has checked that the shapes match.
    unsafe { multiply_with_gemm(output.rows(rows), left, right, addends.output, cores) }
    if let Some(bias) = addends.bias {
        output.add_to_rows(bias);
    }
}

/// Panics if the shapes of the matrices are not those of a product, or contain a zero.
pub(super) fn check_shapes(left: Matrix, right: Matrix, output: &MatrixMut) {
    let shapes = [left.shape(), right.shape(), [output.rows, output.columns]];
    let fits = left.columns == right.rows && left.rows == output.rows && right.columns == output.columns;
    assert!(fits && shapes.iter().flatten().all(|size| *size > 0), "{shapes:?} are not the shapes of a product");
}

/// Computes `output = left @ right` with the crate `gemm`, or `output += left @ right` if `add` is set.
///
/// # Safety
/// The shapes must match: `left` has as many columns as `right` has rows, and `output` has the rows of `left` and the
/// columns of `right`.
pub(super) unsafe fn multiply_with_gemm(output: MatrixMut, left: Matrix, right: Matrix, add: bool, cores: Cores) {
    let strides = |matrix: Matrix| (matrix.column_stride as isize, matrix.row_stride as isize);
    let ((left_columns, left_rows), (right_columns, right_rows)) = (strides(left), strides(right));
    // SAFETY: a `Matrix` lies in its slice, so all elements of `left` and `right` are valid. The elements of `output`
    // are in a slice, or in the spare capacity of a vector, which `output` borrows exclusively. The caller guarantees
    // that the shapes match. Spare capacity may be uninitialised, because without `add` the product does not read
    // `output`.
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
            match cores {
                Cores::This => Parallelism::None,
                Cores::OfPool => Parallelism::Rayon(0),
            },
        );
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::super::wide::versions::assert_same_bits;
    use super::*;

    /// Computes an element of a matrix product by its definition: a sum of products.
    pub fn element_of_product(left: Matrix, right: Matrix, row: usize, column: usize) -> f32 {
        let at = |matrix: Matrix, row: usize, column: usize| {
            matrix.values[row * matrix.row_stride + column * matrix.column_stride]
        };
        (0..left.columns).map(|k| at(left, row, k) * at(right, k, column)).sum()
    }

    /// The sizes of products that are computed in tiles: the number of rows of the left matrix, its number of columns,
    /// and the number of columns of the right matrix. Most numbers of columns of the right matrix are near that of a
    /// tile. Each of the three numbers is once above the largest number that is copied at once, which is 516 for rows
    /// and 512 for the others.
    const IN_TILES: [[usize; 3]; 9] = [
        [16, 3, 17],
        [17, 8, 23],
        [18, 9, 24],
        [33, 31, 25],
        [24, 64, 64],
        [29, 20, 65],
        [530, 16, 70],
        [40, 1030, 150],
        [37, 50, 600],
    ];

    /// Calls `check` with each pair of matrices whose product is computed in tiles, in each of their layouts. `number`
    /// returns the number at a position of a list.
    fn for_products_in_tiles(number: impl Fn(usize) -> f32, check: impl Fn(Matrix, Matrix)) {
        for [rows, inner, columns] in IN_TILES {
            let numbers = |count: usize, salt: usize| (0..count).map(|index| number(index + salt)).collect::<Vec<_>>();
            let (left, right) = (numbers(rows * inner, 0), numbers(inner * columns, 5));
            let lefts =
                [Matrix::new(&left, [rows, inner], inner), Matrix::new(&left, [inner, rows], rows).transposed()];
            let rights = [
                Matrix::new(&right, [inner, columns], columns),
                Matrix::new(&right, [columns, inner], inner).transposed(),
            ];
            for left in lefts {
                rights.iter().for_each(|right| check(left, *right));
            }
        }
    }

    #[test]
    fn products_in_tiles_match_the_definition() {
        // The numbers are small integers, so that all products are exact.
        for_products_in_tiles(
            |index| (index * 7 % 11) as f32 - 5.0,
            |left, right| {
                let (rows, columns) = (left.shape()[0], right.shape()[1]);
                let product: Vec<_> = (0..rows)
                    .flat_map(|row| (0..columns).map(move |column| (row, column)))
                    .map(|(row, column)| element_of_product(left, right, row, column))
                    .collect();
                assert!(left.times(right) == product, "{:?} x {columns}", left.shape());
                let before: Vec<_> = (0..rows * columns).map(|index| (index % 13) as f32).collect();
                let mut output = before.clone();
                let sums = MatrixMut::whole(&mut output, [rows, columns]);
                multiply(sums, left, right, Addends { output: true, bias: None }, Cores::This);
                let sum = before.iter().zip(&product).map(|(before, product)| before + product);
                assert!(output.iter().copied().eq(sum), "{:?} x {columns} added", left.shape());
            },
        );
    }

    /// Tests that a product has the same bits in the tiles of AVX-512, in those of AVX2, and with the crate `gemm`. It
    /// tests only products in which `gemm` sums all products of an output element before it writes the sum.
    #[test]
    fn products_have_the_same_bits_in_tiles_of_any_size_and_with_gemm() {
        for_products_in_tiles(
            |index| (index as f32).sin(),
            |left, right| {
                if SUMMED_FIRST.contains(&left.columns) {
                    assert_same_bits(|| left.times(right));
                }
            },
        );
    }

    #[test]
    fn a_product_on_several_cores_is_the_same_bits_as_on_one() {
        let on = |cores| rayon::ThreadPoolBuilder::new().num_threads(cores).build().unwrap();
        let (one, several) = (on(1), [on(2), on(3)]);
        let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        for_products_in_tiles(
            |index| (index as f32).sin(),
            |left, right| {
                let product = || bits(left.product(right, None, Cores::OfPool));
                let expected = one.install(product);
                for pool in &several {
                    assert!(pool.install(product) == expected, "{:?} on {}", left.shape(), pool.current_num_threads());
                }
            },
        );
        const SIZE: usize = 210;
        let numbers = |salt: usize| (0..SIZE * SIZE).map(|index| ((index * salt) as f32).sin()).collect::<Vec<_>>();
        let (left, right) = (numbers(7), numbers(11));
        let [left, right] = [&left, &right].map(|numbers| Matrix::new(numbers, [SIZE, SIZE], SIZE));
        const { assert!(SIZE * SIZE * SIZE > FOR_ONE_CORE) };
        let expected = bits(one.install(|| left.times(right)));
        assert!(several.iter().all(|pool| bits(pool.install(|| left.times(right))) == expected));
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
    fn a_bias_added_to_a_product_has_the_bits_of_a_separate_addition() {
        let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let check = |left: Matrix, right: Matrix| {
            let columns = right.shape()[1];
            let bias: Vec<_> = (0..columns).map(|column| (column as f32).cos()).collect();
            let sums = left.times(right).into_iter().enumerate().map(|(at, number)| number + bias[at % columns]);
            assert_eq!(bits(left.times_plus(right, &bias)), bits(sums.collect()), "{:?} x {columns}", left.shape());
        };
        for_products_in_tiles(|index| (index as f32).sin(), check);
        // These matrices have too few rows for tiles.
        let numbers = [0.5, -0.25, 3.0, 1.0, 0.125, 7.0];
        check(Matrix::new(&numbers, [2, 3], 3), Matrix::new(&numbers, [3, 2], 2));
    }

    #[test]
    #[should_panic = "the bias must have one element for each output"]
    fn a_bias_of_another_length_is_rejected() {
        let matrix = Matrix::new(&[1.0; 4], [2, 2], 2);
        matrix.times_plus(matrix, &[1.0]);
    }

    #[test]
    #[should_panic = "are not the shapes of a product"]
    fn shapes_that_do_not_fit_are_rejected() {
        let numbers = [1.0; 6];
        let matrix = Matrix::new(&numbers, [2, 3], 3);
        matrix.times(matrix);
    }
}
