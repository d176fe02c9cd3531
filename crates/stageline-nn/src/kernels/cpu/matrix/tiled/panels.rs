//! Packs a product's right matrix into panels, in the order in which a micro-kernel reads it ([`Panels`]).

use std::arch::x86_64::_MM_HINT_T0;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::super::wide::wide;
use super::super::cores::Cores;
use super::super::view::Matrix;
use super::cache::{LINE, prefetch};
use super::transpose::transpose;

/// Number of right-matrix rows that are packed into all panels at a time, while the next rows are prefetched.
const ROWS: usize = 8;

/// A product's right matrix, packed into panels. Each panel has as many columns of the matrix as a register tile, and
/// is row-major.
#[derive(Clone, Copy)]
pub struct Panels<'a> {
    numbers: &'a [f32],
    /// Number of columns of a panel.
    width: usize,
    /// Number of elements of a whole panel in `numbers`.
    of_a_panel: usize,
    /// Zero-based index of the first row of each panel that belongs to this view.
    first_row: usize,
    /// Number of rows of each panel that belong to this view.
    rows: usize,
}

impl<'a> Panels<'a> {
    /// Packs the matrix `right` into panels of `width` columns, the width of a register tile, in the memory of
    /// `buffer`. If the last panel has fewer columns, it is padded with zeros.
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
        // SAFETY: the loop above has written every element of every panel.
        Self { numbers: unsafe { room.assume_init_ref() }, width, of_a_panel, first_row: 0, rows: right.rows }
    }

    /// Returns the number of panels that the right matrix is packed into.
    pub fn number(self) -> usize {
        self.numbers.len() / self.of_a_panel
    }

    /// Returns the packed panels as row-major slices, in the order of the right matrix's columns.
    pub fn iter(self) -> impl Iterator<Item = &'a [f32]> {
        let rows = self.first_row * self.width..(self.first_row + self.rows) * self.width;
        self.numbers.chunks_exact(self.of_a_panel).map(move |panel| &panel[rows.clone()])
    }

    /// Returns a view of the rows `range` (zero-based indices) of all panels.
    pub fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        Self { first_row: self.first_row + range.start, rows: range.len(), ..self }
    }

    /// Returns a view of the panels that contain the columns `range` (zero-based indices). The first of these columns
    /// must be the first of a panel.
    pub fn columns(self, range: Range<usize>) -> Self {
        assert!(range.start.is_multiple_of(self.width), "a panel of {} columns begins at {range:?}", self.width);
        let panels = range.start / self.width..range.end.div_ceil(self.width);
        Self { numbers: &self.numbers[panels.start * self.of_a_panel..panels.end * self.of_a_panel], ..self }
    }
}

/// Returns the buffer size, in f32 elements, for panels of `rows` rows and `columns` columns in total.
pub const fn capacity(columns: usize, rows: usize) -> usize {
    columns * rows + LINE
}

/// Returns uninitialised memory in `buffer` for `numbers` f32 elements, and drops the buffer's previous contents. The
/// memory is aligned to a cache line, because kernels are slower if a vector spans two lines.
pub fn room(buffer: &mut Vec<f32>, numbers: usize) -> &mut [MaybeUninit<f32>] {
    buffer.clear();
    buffer.reserve(numbers + LINE);
    let spare = buffer.spare_capacity_mut();
    let first = spare.as_ptr().align_offset(LINE * size_of::<f32>());
    &mut spare[first..][..numbers]
}

wide! {
    // Packs a matrix with contiguous rows into row-major panels of `width` columns.
    fn copy_rows(right: Matrix, width: usize, panels: &mut [MaybeUninit<f32>]) {
        for first in (0..right.rows).step_by(ROWS) {
            for (index, panel) in panels.chunks_exact_mut(width * right.rows).enumerate() {
                let columns = index * width..right.columns.min((index + 1) * width);
                for row in first..right.rows.min(first + ROWS) {
                    let later = right.values.as_ptr().wrapping_add((row + ROWS) * right.row_stride + columns.start);
                    prefetch::<_MM_HINT_T0>(later);
                    let from = &right.values[row * right.row_stride..][columns.clone()];
                    let (to, beyond) = panel[row * width..][..width].split_at_mut(from.len());
                    // A plain loop instead of `write_copy_of_slice`, because calling the system's `memcpy` takes longer
                    // than this copy.
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

/// Packs a matrix with contiguous columns into row-major panels of `width` columns.
fn copy_columns(right: Matrix, width: usize, panels: &mut [MaybeUninit<f32>]) {
    for (columns, panel) in right.transposed().strips(width).zip(panels.chunks_exact_mut(width * right.rows)) {
        // SAFETY: the processor has AVX2, because products are computed in tiles only on such processors.
        unsafe { transpose(columns, panel, width) };
    }
}
