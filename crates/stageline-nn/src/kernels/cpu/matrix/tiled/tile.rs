//! Tiles, the parts of a product that a kernel of the crate `gemm-f32` computes at once ([`Tile`]).

use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};

use gemm_common::microkernel::MicroKernelFn;
use gemm_f32::microkernel::{avx512f, fma};

use super::super::super::wide::{has_avx2, has_avx512};
use super::super::view::{Matrix, MatrixMut};
use super::transpose::LINE;

/// The largest part of a product that the processor's vector registers can hold, and the kernels that compute it.
pub struct Tile {
    /// The number of rows of the largest tile.
    pub rows: usize,
    /// The number of columns of the largest tile.
    pub columns: usize,
    /// The number of f32 numbers in a vector register.
    lanes: usize,
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

    /// Writes the product of `left` and a panel to `output`, or adds it to `output` if `add` is set. The panel has
    /// [`columns`](Self::columns) numbers for each column of `left`; those beyond the columns of `output` are not used.
    ///
    /// # Panics
    /// Panics if the output is empty or larger than a tile, if the shapes do not fit each other, or if the rows of
    /// `left` do not have consecutive numbers.
    pub fn multiply(&self, output: MatrixMut, left: Matrix, panel: &[f32], add: bool) {
        let (rows, columns, depth) = (output.rows, output.columns, left.columns);
        let fits = (1..=self.rows).contains(&rows) && (1..=self.columns).contains(&columns) && left.rows == rows;
        assert!(
            fits && left.column_stride == 1 && panel.len() == depth * self.columns,
            "the shapes of a tile must fit"
        );
        load(&output);
        let kernel = self.kernels[(columns.div_ceil(self.lanes) - 1) * self.rows + rows - 1];
        let [stride, width, left_stride] = [output.stride, self.columns, left.row_stride].map(|stride| stride as isize);
        // SAFETY: `of_processor` found the kernel's instructions. The output, `left` and the panel have the numbers
        // that the kernel accesses, as was just checked, and the output is borrowed exclusively. The kernel reads the
        // output only if `add` is set.
        unsafe {
            kernel(
                columns,
                rows,
                depth,
                output.first,
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

/// Asks the processor to load the cache lines of a tile's output, so that the kernel does not wait for them at its end.
fn load(output: &MatrixMut) {
    for row in 0..output.rows {
        for column in (0..output.columns).step_by(LINE) {
            let number = output.first.wrapping_add(row * output.stride + column);
            // SAFETY: a prefetch changes nothing, whatever its address.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(number.cast_const().cast()) };
        }
    }
}
