//! Tiles, the parts of a product that a kernel of the crate `gemm-f32` computes at once ([`Tile`]).

use std::arch::x86_64::_MM_HINT_ET0;

use gemm_common::microkernel::MicroKernelFn;
use gemm_f32::microkernel::{avx512f, fma};

use super::super::super::wide::{has_avx2, has_avx512};
use super::super::view::{Matrix, MatrixMut};
use super::ahead::Loading;
use super::cache::{LINE, prefetch};
use super::panels::Panels;
use super::parts::parts;

/// The largest part of a product that the processor's vector registers can hold, and the kernels that compute it.
pub struct Tile {
    /// The number of rows of the largest tile.
    pub rows: usize,
    /// The number of columns of the largest tile.
    pub columns: usize,
    /// The number of f32 numbers in a vector register.
    pub lanes: usize,
    /// The kernels of all tiles, ordered by their number of vectors in a row and then by their number of rows.
    kernels: &'static [MicroKernelFn<f32>],
}

impl Tile {
    /// Returns the tile of this host's processor; `None` if it has neither AVX2 nor AVX-512.
    pub fn of_processor() -> Option<&'static Self> {
        const fn tile<const ROWS: usize>(lanes: usize, kernels: &'static [[MicroKernelFn<f32>; ROWS]]) -> Tile {
            Tile { rows: ROWS, columns: lanes * kernels.len(), lanes, kernels: kernels.as_flattened() }
        }
        static AVX512: Tile = tile(16, &avx512f::f32::UKR);
        static AVX2: Tile = tile(8, &fma::f32::UKR);
        if has_avx512() {
            Some(&AVX512)
        } else if has_avx2() {
            Some(&AVX2)
        } else {
            None
        }
    }

    /// Writes the product of `left`, a strip of a left matrix, and the panels of a right matrix to `output`, tile by
    /// tile, or adds it to `output` if `add` is set. `ahead` loads numbers for later with every tile.
    ///
    /// # Panics
    /// Panics if the strip is empty or higher than a tile, if the shapes do not fit each other, or if the rows of `left`
    /// do not have consecutive numbers.
    pub fn multiply(&self, output: MatrixMut, left: Matrix, panels: Panels, add: bool, mut ahead: Loading) {
        let (rows, depth) = (output.rows, left.columns);
        let fits = (1..=self.rows).contains(&rows) && left.rows == rows;
        let covers = output.columns.div_ceil(self.columns) == panels.number();
        assert!(fits && covers && left.column_stride == 1, "the shapes of a strip must fit");
        let [stride, width, left_stride] = [output.stride, self.columns, left.row_stride].map(|stride| stride as isize);
        // Most tiles have all columns. Their kernel is found once, because that takes a division.
        let of_all_columns = self.kernel([rows, self.columns]);
        for (columns, panel) in parts(output.columns, self.columns).zip(panels.iter()) {
            assert_eq!(panel.len(), depth * self.columns, "a panel has a row for each column of the strip");
            let (first, columns) = (output.first.wrapping_add(columns.start), columns.len());
            load([rows, columns], first, output.stride);
            ahead.load();
            let kernel = if columns == self.columns { of_all_columns } else { self.kernel([rows, columns]) };
            // SAFETY: `of_processor` found the kernel's instructions. The output, `left` and the panel have the numbers
            // that the kernel accesses, as was just checked, and the output is borrowed exclusively. The kernel reads
            // the output only if `add` is set.
            unsafe {
                kernel(
                    columns,
                    rows,
                    depth,
                    first,
                    panel.as_ptr(),
                    left.values.as_ptr(),
                    stride,
                    1,
                    width,
                    1,
                    left_stride,
                    f32::from(add),
                    1.0,
                    u8::from(add),
                    false,
                    false,
                    false,
                    std::ptr::null(),
                );
            }
        }
    }

    /// Returns the kernel of a tile of `rows` rows and `columns` columns.
    fn kernel(&self, [rows, columns]: [usize; 2]) -> MicroKernelFn<f32> {
        self.kernels[(columns.div_ceil(self.lanes) - 1) * self.rows + rows - 1]
    }
}

/// Asks the processor to load the cache lines of a tile's output, so that the kernel does not wait for them at its end.
/// The output has `rows` rows, which begin `stride` numbers apart, and `columns` columns.
fn load([rows, columns]: [usize; 2], first: *mut f32, stride: usize) {
    for row in 0..rows {
        for column in (0..columns).step_by(LINE) {
            prefetch::<_MM_HINT_ET0>(first.wrapping_add(row * stride + column));
        }
    }
}
