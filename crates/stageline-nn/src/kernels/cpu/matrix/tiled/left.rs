//! Copies a transposed left matrix to contiguous rows, which micro-kernels read faster in large products ([`by_rows`]).

use super::super::cores::Cores;
use super::super::view::Matrix;
use super::cache::LINE;
use super::panels::room;
use super::transpose::transpose;

/// Returns the matrix `left` with contiguous rows. A transposed view is first copied into `buffer`, single-threaded or
/// in parallel as `cores` selects; other matrices are returned as they are.
pub fn by_rows<'a>(left: Matrix<'a>, buffer: &'a mut Vec<f32>, cores: Cores) -> Matrix<'a> {
    if left.column_stride == 1 {
        return left;
    }
    let stride = stride(left.columns);
    let room = room(buffer, left.rows * stride);
    let of_a_core = left.rows.div_ceil(cores.number()).next_multiple_of(LINE);
    cores.each(room.chunks_mut(of_a_core * stride).enumerate(), |(index, copy)| {
        let rows = index * of_a_core..left.rows.min((index + 1) * of_a_core);
        // SAFETY: the processor has AVX2, because products are computed in tiles only on such processors.
        unsafe { transpose(left.rows(rows).transposed(), copy, stride) };
    });
    // SAFETY: the loop above has written every element of every row.
    Matrix::new(unsafe { room.assume_init_ref() }, [left.rows, left.columns], stride)
}

/// Returns the buffer size, in f32 elements, for copying a transposed view with `rows` rows and `columns` columns.
pub const fn capacity(rows: usize, columns: usize) -> usize {
    rows * stride(columns) + LINE
}

/// Returns the copy's row stride, in f32 elements, for rows of `columns` elements: the columns rounded up to whole
/// cache lines, plus one padding line. Without the padding, rows of 512 elements would begin at multiples of a power of
/// 2, and evict each other from a core's cache.
const fn stride(columns: usize) -> usize {
    columns.next_multiple_of(LINE) + LINE
}
