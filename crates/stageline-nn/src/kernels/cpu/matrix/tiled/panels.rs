//! A product's right matrix in the order in which a kernel reads it ([`Panels`]).

use std::arch::x86_64::_MM_HINT_T0;
use std::mem::MaybeUninit;

use super::super::super::wide::wide;
use super::super::cores::Cores;
use super::super::view::Matrix;
use super::cache::{LINE, prefetch};
use super::transpose::transpose;

/// The number of rows of a matrix that are copied into all panels before the next rows are copied. The processor loads
/// the next rows meanwhile.
const ROWS: usize = 8;

/// A copy of a product's right matrix. Each panel has as many columns of the matrix as a tile, and its rows lie one
/// after the other.
#[derive(Clone, Copy)]
pub struct Panels<'a> {
    numbers: &'a [f32],
    of_a_panel: usize,
}

impl<'a> Panels<'a> {
    /// Copies the matrix `right` into panels of `width` columns, the width of a tile, in the memory of `buffer`. If the
    /// last panel has fewer columns, zeros take the place of the missing ones.
    pub fn of(right: Matrix, width: usize, buffer: &'a mut Vec<f32>, cores: Cores) -> Self {
        let number = right.columns.div_ceil(width);
        let of_a_panel = width * right.rows;
        let room = room(buffer, number * of_a_panel);
        let of_a_core = number.div_ceil(cores.number());
        cores.each(room.chunks_mut(of_a_core * of_a_panel).enumerate(), |(index, panels)| {
            let first = index * of_a_core * width;
            let right = right.columns(first..right.columns.min(first + of_a_core * width));
            if right.column_stride == 1 { copy_rows(right, width, panels) } else { copy_columns(right, width, panels) }
        });
        // SAFETY: the parts above are all panels, and every number of a panel has been written.
        Self { numbers: unsafe { room.assume_init_ref() }, of_a_panel }
    }

    /// Returns the number of panels.
    pub fn number(self) -> usize {
        self.numbers.len() / self.of_a_panel
    }

    /// Returns the panels in the order of their columns.
    pub fn iter(self) -> impl Iterator<Item = &'a [f32]> {
        self.numbers.chunks_exact(self.of_a_panel)
    }
}

/// Returns the size, in f32 numbers, of a buffer for panels that together have `columns` columns, of `rows` rows.
pub const fn capacity(columns: usize, rows: usize) -> usize {
    columns * rows + LINE
}

/// Returns memory of `buffer` for `numbers` f32 numbers, and drops the previous contents. The memory begins at the
/// start of a cache line, because kernels are slower if a vector lies in two lines.
pub fn room(buffer: &mut Vec<f32>, numbers: usize) -> &mut [MaybeUninit<f32>] {
    buffer.clear();
    buffer.reserve(numbers + LINE);
    let spare = buffer.spare_capacity_mut();
    let first = spare.as_ptr().align_offset(LINE * size_of::<f32>());
    &mut spare[first..][..numbers]
}

wide! {
    // Copies a matrix whose rows have consecutive numbers into panels of `width` columns.
    fn copy_rows(right: Matrix, width: usize, panels: &mut [MaybeUninit<f32>]) {
        for first in (0..right.rows).step_by(ROWS) {
            for (index, panel) in panels.chunks_exact_mut(width * right.rows).enumerate() {
                let columns = index * width..right.columns.min((index + 1) * width);
                for row in first..right.rows.min(first + ROWS) {
                    let later = right.values.as_ptr().wrapping_add((row + ROWS) * right.row_stride + columns.start);
                    prefetch::<_MM_HINT_T0>(later);
                    let from = &right.values[row * right.row_stride..][columns.clone()];
                    let (to, beyond) = panel[row * width..][..width].split_at_mut(from.len());
                    // Not `write_copy_of_slice`, because a call of the system's function takes longer than this copy.
                    let ((to, to_rest), (from, from_rest)) = (to.as_chunks_mut::<8>(), from.as_chunks::<8>());
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = from.map(MaybeUninit::new);
                    }
                    for (to, from) in to_rest.iter_mut().zip(from_rest) {
                        to.write(*from);
                    }
                    beyond.fill(MaybeUninit::new(0.0));
                }
            }
        }
    }
}

/// Copies a matrix whose columns have consecutive numbers into panels of `width` columns.
fn copy_columns(right: Matrix, width: usize, panels: &mut [MaybeUninit<f32>]) {
    for (columns, panel) in right.transposed().strips(width).zip(panels.chunks_exact_mut(width * right.rows)) {
        // SAFETY: a product is computed in tiles only by a processor with AVX2.
        unsafe { transpose(columns, panel, width) };
    }
}
