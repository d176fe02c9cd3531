//! A product's left matrix in the order in which a kernel reads it ([`by_rows`]).

use super::super::cores::Cores;
use super::super::view::Matrix;
use super::cache::LINE;
use super::panels::room;
use super::transpose::transpose;

/// Returns a view of the matrix `left` whose rows have consecutive numbers. A transposed view is copied into the memory
/// of `buffer` for that.
pub fn by_rows<'a>(left: Matrix<'a>, buffer: &'a mut Vec<f32>, cores: Cores) -> Matrix<'a> {
    if left.column_stride == 1 {
        return left;
    }
    let stride = stride(left.columns);
    let room = room(buffer, left.rows * stride);
    let of_a_core = left.rows.div_ceil(cores.number()).next_multiple_of(LINE);
    cores.each(room.chunks_mut(of_a_core * stride).enumerate(), |(index, copy)| {
        let rows = index * of_a_core..left.rows.min((index + 1) * of_a_core);
        // SAFETY: a product is computed in tiles only by a processor with AVX2.
        unsafe { transpose(left.rows(rows).transposed(), copy, stride) };
    });
    // SAFETY: the parts above are all rows, and every number of a row has been written.
    Matrix::new(unsafe { room.assume_init_ref() }, [left.rows, left.columns], stride)
}

/// Returns the size, in f32 numbers, of a buffer for the copy of a transposed view with `rows` rows and `columns`
/// columns.
pub const fn capacity(rows: usize, columns: usize) -> usize {
    rows * stride(columns) + LINE
}

/// Returns the distance, in f32 numbers, between the beginnings of copied rows of `columns` numbers: the columns
/// rounded up to whole cache lines, and one cache line more. Without this line, rows of 512 numbers would begin at
/// multiples of a power of 2, and evict each other from a core's cache.
const fn stride(columns: usize) -> usize {
    columns.next_multiple_of(LINE) + LINE
}
