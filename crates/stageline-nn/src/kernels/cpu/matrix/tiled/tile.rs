//! Register tiles, the parts of a matrix product that a micro-kernel computes in one call ([`Tile`]).

use std::arch::x86_64::{__m256, __m512};

use super::super::super::wide::{has_avx2, has_avx512};
use super::super::addends::Addends;
use super::super::view::{Matrix, MatrixMut};
use super::ahead::Ahead;
use super::kernel::{self, Kernel, Kernels, Operands};
use super::panels::Panels;
use super::parts::parts;
use super::vector::Vector;

/// Size of the processor's largest register tile, whose sums fit into its vector registers, and the micro-kernels for
/// tiles of up to this size.
pub struct Tile {
    /// Number of columns of the largest register tile that a micro-kernel computes.
    pub columns: usize,
    /// Number of f32 lanes in the processor's vector registers: 16 with AVX-512, and 8 with AVX2.
    lanes: usize,
    /// Micro-kernels for all tile sizes, indexed by the number of vectors in a row minus 1, and then by the number of
    /// rows minus 1.
    kernels: &'static [[Kernel; kernel::ROWS]],
    /// Micro-kernels for left matrices that are transposed views, indexed in the same way.
    transposed_kernels: &'static [[Kernel; kernel::ROWS]],
}

impl Tile {
    /// Number of rows of the largest register tile, the part of a product that a micro-kernel computes in one call.
    pub const ROWS: usize = kernel::ROWS;

    /// Returns the largest register tile and the micro-kernels for this host's processor; `None` if it has neither AVX2
    /// nor AVX-512.
    pub fn of_processor() -> Option<&'static Self> {
        const fn with<V: Vector, const VECTORS: usize>([kernels, transposed]: [&'static Kernels<VECTORS>; 2]) -> Tile {
            let columns = V::LANES * V::IN_A_ROW;
            Tile { columns, lanes: V::LANES, kernels, transposed_kernels: transposed }
        }
        static AVX512: Tile = with::<__m512, _>([&kernel::AVX512, &kernel::AVX512_TRANSPOSED]);
        static AVX2: Tile = with::<__m256, _>([&kernel::AVX2, &kernel::AVX2_TRANSPOSED]);
        if has_avx512() {
            Some(&AVX512)
        } else if has_avx2() {
            Some(&AVX2)
        } else {
            None
        }
    }

    /// Computes `output = left @ right + addends`, tile by tile. `left` is a strip (some consecutive rows) of the left
    /// matrix, and `panels` contains the packed right matrix. Meanwhile `ahead` prefetches data that is needed later.
    ///
    /// # Panics
    /// Panics if the strip is empty or has more rows than a tile, or if the shapes do not match. Also panics if
    /// `left` has neither contiguous rows nor contiguous columns.
    pub fn multiply(&self, output: MatrixMut, left: Matrix, panels: Panels, addends: Addends, mut ahead: Ahead) {
        let (rows, depth) = (output.rows, left.columns);
        let fits = (1..=Self::ROWS).contains(&rows) && left.rows == rows;
        let covers = output.columns.div_ceil(self.columns) == panels.number();
        assert!(fits && covers, "the shapes of a strip must fit");
        let (kernels, left_stride) = match (left.row_stride, left.column_stride) {
            (stride, 1) => (self.kernels, stride),
            (1, stride) => (self.transposed_kernels, stride),
            strides => panic!("a matrix with the strides {strides:?} has neither contiguous rows nor columns"),
        };
        for (columns, panel) in parts(output.columns, self.columns).zip(panels.iter()) {
            assert_eq!(panel.len(), depth * self.columns, "a panel has a row for each column of the strip");
            let kernel = kernels[columns.len().div_ceil(self.lanes) - 1][rows - 1];
            let operands = Operands {
                depth,
                left: left.values.as_ptr(),
                left_stride,
                panel: panel.as_ptr(),
                output: output.first.wrapping_add(columns.start),
                output_stride: output.stride,
                columns: columns.len(),
                addends: addends.of_columns(columns),
            };
            // SAFETY: `of_processor` has checked that the processor has the kernel's instructions. The checks above
            // ensure that all elements that the kernel accesses exist, and the output is borrowed exclusively.
            unsafe { kernel(operands, &mut ahead) };
        }
    }
}
