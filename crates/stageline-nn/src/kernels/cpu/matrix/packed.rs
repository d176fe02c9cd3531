//! Products of several left matrices with the same right matrix, which is packed once ([`Packed`]).

use std::ops::Range;

use super::addends::Addends;
use super::cores::Cores;
use super::multiply::{check_shapes, multiply_with_gemm};
#[cfg(target_arch = "x86_64")]
use super::tiled::{self, Panels, Tile};
use super::view::{Matrix, MatrixMut};

/// A right matrix, prepared for products with several left matrices. On processors with AVX2 or AVX-512, it is packed
/// in the order in which the tiled kernels read it. On others it is the matrix itself, and the crate `gemm` computes
/// the products.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    matrix: Matrix<'a>,
    #[cfg(target_arch = "x86_64")]
    panels: Option<(&'static Tile, Panels<'a>)>,
}

impl<'a> Matrix<'a> {
    /// Prepares this matrix to be the right matrix of several products. `buffer` holds the packed copy, if one is made.
    pub fn packed(self, buffer: &'a mut Vec<f32>) -> Packed<'a> {
        #[cfg(not(target_arch = "x86_64"))]
        let _ = buffer;
        Packed {
            matrix: self,
            #[cfg(target_arch = "x86_64")]
            panels: Tile::of_processor().map(|tile| (tile, Panels::of(self, tile.columns, buffer, Cores::This))),
        }
    }
}

impl Packed<'_> {
    /// Splits the rows `all` of a left matrix into strips, which a caller multiplies one by one. For each strip it may
    /// leave out columns that it does not need, such as the keys after the queries of the strip in causal attention.
    /// With register tiles a strip has the 6 rows of a tile. The crate `gemm` is fastest with all rows at once, so
    /// without tiles there is one strip.
    pub fn strips(all: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let rows = all.len().max(1);
        #[cfg(target_arch = "x86_64")]
        let rows = Tile::of_processor().map_or(rows, |_| Tile::ROWS);
        all.clone().step_by(rows).map(move |start| start..all.end.min(start + rows))
    }

    /// Returns a view of this matrix's rows `range` (zero-based indices).
    pub fn rows(self, range: Range<usize>) -> Self {
        Self {
            matrix: self.matrix.rows(range.clone()),
            #[cfg(target_arch = "x86_64")]
            panels: self.panels.map(|(tile, panels)| (tile, panels.rows(range))),
        }
    }

    /// Returns a view of this matrix's columns `range` (zero-based indices). The range must begin at a multiple of 64.
    pub fn columns(self, range: Range<usize>) -> Self {
        Self {
            matrix: self.matrix.columns(range.clone()),
            #[cfg(target_arch = "x86_64")]
            panels: self.panels.map(|(tile, panels)| (tile, panels.columns(range))),
        }
    }
}

impl MatrixMut<'_> {
    /// Overwrites this matrix: `self = left @ right`, computed on the calling thread.
    pub fn set_product(&mut self, left: Matrix, right: Packed) {
        self.multiply_packed(left, right, Addends::default());
    }

    /// Accumulates into this matrix: `self += left @ right`, computed on the calling thread.
    pub fn add_product(&mut self, left: Matrix, right: Packed) {
        self.multiply_packed(left, right, Addends { output: true, bias: None });
    }

    fn multiply_packed(&mut self, left: Matrix, right: Packed, addends: Addends) {
        check_shapes(left, right.matrix, self);
        let output = self.rows(0..left.rows);
        #[cfg(target_arch = "x86_64")]
        if let Some((tile, panels)) = right.panels {
            return tiled::multiply_packed(tile, output, left, panels, addends);
        }
        // SAFETY: `check_shapes` has checked that the shapes match.
        unsafe { multiply_with_gemm(output, left, right.matrix, addends.output, Cores::This) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::wide::versions::assert_same_bits;
    use super::super::multiply::tests::element_of_product;
    use super::*;

    /// Tests products with parts of a packed matrix, strip by strip, with every instruction set. The numbers are small
    /// integers, so that all sums are exact.
    #[test]
    fn products_with_parts_of_a_packed_matrix_match_the_definition() {
        const ROWS: usize = 20;
        let numbers = |count: usize| (0..count).map(|index| (index * 7 % 11) as f32 - 5.0).collect::<Vec<_>>();
        for [inner, columns] in [[5, 3], [70, 64], [130, 150], [600, 70]] {
            let (left, right) = (numbers(ROWS * inner), numbers(inner * columns));
            let lefts =
                [Matrix::new(&left, [ROWS, inner], inner), Matrix::new(&left, [inner, ROWS], ROWS).transposed()];
            let rights = [
                Matrix::new(&right, [inner, columns], columns),
                Matrix::new(&right, [columns, inner], inner).transposed(),
            ];
            let of_inner = inner / 3..inner;
            for (left, right) in lefts.into_iter().flat_map(|left| rights.map(|right| (left, right))) {
                for of_columns in [0..columns, 0..columns - 1, (columns - 1) / 64 * 64..columns] {
                    let left = left.columns(of_inner.clone());
                    let part = right.rows(of_inner.clone()).columns(of_columns.clone());
                    let positions = (0..ROWS).flat_map(|row| (0..of_columns.len()).map(move |column| (row, column)));
                    let twice = |(row, column)| 2.0 * element_of_product(left, part, row, column);
                    let expected: Vec<_> = positions.map(twice).collect();
                    assert_same_bits(|| {
                        let mut buffer = Vec::new();
                        let packed = right.packed(&mut buffer).rows(of_inner.clone()).columns(of_columns.clone());
                        let mut found = vec![f32::NAN; expected.len()];
                        let mut output = MatrixMut::whole(&mut found, [ROWS, of_columns.len()]);
                        for rows in Packed::strips(0..ROWS) {
                            output.rows(rows.clone()).set_product(left.rows(rows.clone()), packed);
                            output.rows(rows.clone()).add_product(left.rows(rows), packed);
                        }
                        assert_eq!(found, expected);
                        found
                    });
                }
            }
        }
    }

    #[test]
    fn a_product_leaves_the_columns_beside_its_output_as_they_are() {
        let (left, right, mut output) = ([1.0; 4], [2.0; 4], [7.0; 10]);
        let mut buffer = Vec::new();
        let packed = Matrix::new(&right, [2, 2], 2).packed(&mut buffer);
        let mut pieces = MatrixMut::side_by_side(&mut output, 5, 5);
        let piece = pieces.next().expect("there is one piece of all columns");
        piece.columns(1..3).set_product(Matrix::new(&left, [2, 2], 2), packed);
        drop(pieces);
        assert_eq!(output, [7.0, 4.0, 4.0, 7.0, 7.0, 7.0, 4.0, 4.0, 7.0, 7.0]);
    }

    #[test]
    #[should_panic = "are not the shapes of a product"]
    fn shapes_that_do_not_fit_are_rejected() {
        let (numbers, mut buffer) = ([1.0; 6], Vec::new());
        let matrix = Matrix::new(&numbers, [2, 3], 3);
        MatrixMut::whole(&mut [0.0; 4], [2, 2]).set_product(matrix, matrix.packed(&mut buffer));
    }
}
