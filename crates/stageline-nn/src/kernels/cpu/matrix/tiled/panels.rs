//! Packs a matrix into panels, in the order in which a micro-kernel reads it ([`Panels`]).

use std::arch::x86_64::{__m256, __m512, _MM_HINT_T0};
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::super::wide::wide;
use super::super::cores::Cores;
use super::super::view::Matrix;
use super::cache::{LINE, prefetch};
use super::kernel::ROWS;
use super::transpose::transpose;
use super::vector::Vector;

/// Number of matrix rows that are packed into all panels at a time, while the next rows are prefetched.
const AT_ONCE: usize = 8;

/// A matrix packed into panels, which are row-major copies of some consecutive columns. The panels of a product's right
/// matrix have as many columns as a register tile. Those of a transposed left matrix have as many as the tile has rows.
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
    /// Packs `matrix` into panels of `width` columns, the width or height of a register tile, in the memory of `buffer`.
    /// If the last panel has fewer columns, it is padded with zeros.
    pub fn of(matrix: Matrix, width: usize, buffer: &'a mut Vec<f32>, cores: Cores) -> Self {
        let number = matrix.columns.div_ceil(width);
        let of_a_panel = width * matrix.rows;
        let room = room(buffer, number * of_a_panel);
        let of_a_core = number.div_ceil(cores.number());
        cores.each(room.chunks_mut(of_a_core * of_a_panel).enumerate(), |(index, panels)| {
            let first = index * of_a_core * width;
            let part = matrix.columns(first..matrix.columns.min(first + of_a_core * width));
            if part.column_stride == 1 { copy_rows(part, width, panels) } else { copy_columns(part, width, panels) }
        });
        // SAFETY: the loop above has written every element of every panel.
        Self { numbers: unsafe { room.assume_init_ref() }, width, of_a_panel, first_row: 0, rows: matrix.rows }
    }

    /// Returns the number of panels.
    pub fn number(self) -> usize {
        self.numbers.len() / self.of_a_panel
    }

    /// Returns the packed panel with this zero-based index as a row-major slice.
    pub fn at(self, index: usize) -> &'a [f32] {
        let rows = self.first_row * self.width..(self.first_row + self.rows) * self.width;
        &self.numbers[index * self.of_a_panel..][rows]
    }

    /// Returns the packed panels as row-major slices, in the order of the matrix's columns.
    pub fn iter(self) -> impl Iterator<Item = &'a [f32]> {
        (0..self.number()).map(move |index| self.at(index))
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
fn room(buffer: &mut Vec<f32>, numbers: usize) -> &mut [MaybeUninit<f32>] {
    buffer.clear();
    buffer.reserve(numbers + LINE);
    let spare = buffer.spare_capacity_mut();
    let first = spare.as_ptr().align_offset(LINE * size_of::<f32>());
    &mut spare[first..][..numbers]
}

wide! {
    // Packs a matrix with contiguous rows into row-major panels of `width` columns.
    fn copy_rows(matrix: Matrix, width: usize, panels: &mut [MaybeUninit<f32>]) {
        const OF_AVX2: usize = __m256::LANES * __m256::IN_A_ROW;
        const OF_AVX512: usize = __m512::LANES * __m512::IN_A_ROW;
        match width {
            ROWS => copy_pieces::<ROWS>(matrix, panels),
            OF_AVX2 => copy_pieces::<OF_AVX2>(matrix, panels),
            OF_AVX512 => copy_pieces::<OF_AVX512>(matrix, panels),
            width => unreachable!("no register tile has {width} rows or columns"),
        }
    }
}

/// Packs a matrix with contiguous rows into row-major panels of `WIDTH` columns. The width is a constant, so that the
/// compiler copies each piece with a few instructions instead of a loop.
#[inline(always)]
fn copy_pieces<const WIDTH: usize>(matrix: Matrix, panels: &mut [MaybeUninit<f32>]) {
    for first in (0..matrix.rows).step_by(AT_ONCE) {
        for (index, panel) in panels.chunks_exact_mut(WIDTH * matrix.rows).enumerate() {
            let columns = index * WIDTH..matrix.columns.min((index + 1) * WIDTH);
            let (pieces, _) = panel.as_chunks_mut::<WIDTH>();
            let pieces = &mut pieces[first..matrix.rows.min(first + AT_ONCE)];
            for (row, to) in (first..).zip(pieces) {
                // Pieces narrower than a cache line share one prefetch.
                if columns.start % LINE < WIDTH {
                    let later = (row + AT_ONCE) * matrix.row_stride + columns.start;
                    for line in (0..WIDTH).step_by(LINE) {
                        prefetch::<_MM_HINT_T0>(matrix.values.as_ptr().wrapping_add(later + line));
                    }
                }
                let from = &matrix.values[row * matrix.row_stride..][columns.clone()];
                match from.as_array::<WIDTH>() {
                    Some(from) => *to = from.map(MaybeUninit::new),
                    None => {
                        to.fill(MaybeUninit::new(0.0));
                        to[..from.len()].write_copy_of_slice(from);
                    }
                }
            }
        }
    }
}

/// Packs a matrix with contiguous columns into row-major panels of `width` columns.
fn copy_columns(matrix: Matrix, width: usize, panels: &mut [MaybeUninit<f32>]) {
    for (columns, panel) in matrix.transposed().strips(width).zip(panels.chunks_exact_mut(width * matrix.rows)) {
        // SAFETY: the processor has AVX2, because products are computed in tiles only on such processors.
        unsafe { transpose(columns, panel, width) };
    }
}
