//! Transposes matrices in vector registers ([`transpose`]).

use std::arch::x86_64::{
    _MM_HINT_T0, _mm_loadu_ps, _mm256_castps128_ps256, _mm256_insertf128_ps, _mm256_shuffle_ps, _mm256_storeu_ps,
    _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};
use std::mem::MaybeUninit;

use super::super::view::Matrix;
use super::cache::{LINE, prefetch};

/// Side of the square blocks that are transposed in registers: 8, the number of f32 lanes in an AVX2 register.
const SIDE: usize = 8;

/// Prefetch distance in f32 elements: how far ahead of the current element a row is prefetched.
const AHEAD: usize = 4 * LINE;

/// Writes the transpose of `matrix` to `transpose`. The rows of `matrix` must be contiguous. `stride` is the row stride
/// of the transpose, in elements; the padding at the end of each row is filled with zeros.
#[target_feature(enable = "avx2")]
pub fn transpose(matrix: Matrix, transpose: &mut [MaybeUninit<f32>], stride: usize) {
    let (rows, columns) = (matrix.rows / LINE * LINE, matrix.columns / SIDE * SIDE);
    // Each row of the transpose is written a whole cache line at a time.
    for first in (0..rows).step_by(LINE) {
        for column in (0..columns).step_by(SIDE) {
            for row in first..first + LINE {
                let number = matrix.values.as_ptr().wrapping_add(row * matrix.row_stride + column + AHEAD);
                prefetch::<_MM_HINT_T0>(number);
            }
            for row in (first..first + LINE).step_by(SIDE) {
                let from = &matrix.values[row * matrix.row_stride + column..];
                transpose_square(from, matrix.row_stride, &mut transpose[column * stride + row..], stride);
            }
        }
    }
    for (column, to) in transpose.chunks_exact_mut(stride).enumerate() {
        let written = if column < columns { rows } else { 0 };
        for (row, to) in to.iter_mut().enumerate().skip(written) {
            let number = if row < matrix.rows { matrix.values[row * matrix.row_stride + column] } else { 0.0 };
            to.write(number);
        }
    }
}

/// Writes the transpose of a square block of [`SIDE`] x [`SIDE`] elements from `from` to `to`. `from_stride` and
/// `to_stride` are their row strides.
#[target_feature(enable = "avx2")]
#[inline]
fn transpose_square(from: &[f32], from_stride: usize, to: &mut [MaybeUninit<f32>], to_stride: usize) {
    const LAST: usize = SIDE - 1;
    assert!(from.len() >= LAST * from_stride + SIDE && to.len() >= LAST * to_stride + SIDE, "the squares must fit");
    for half in [0, SIDE / 2] {
        // Each register combines half of a row with the same half of the row four rows below.
        let [a, b, c, d] = {
            let load = |row: usize| {
                // SAFETY: the assertion above has checked that the slice contains all elements of the square.
                unsafe { _mm_loadu_ps(from.as_ptr().add(row * from_stride + half)) }
            };
            let pair = |row: usize| _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(load(row)), load(row + SIDE / 2));
            [pair(0), pair(1), pair(2), pair(3)]
        };
        let [low, high] = [
            [_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d)],
            [_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d)],
        ];
        let columns = [
            _mm256_shuffle_ps::<0b01_00_01_00>(low[0], low[1]),
            _mm256_shuffle_ps::<0b11_10_11_10>(low[0], low[1]),
            _mm256_shuffle_ps::<0b01_00_01_00>(high[0], high[1]),
            _mm256_shuffle_ps::<0b11_10_11_10>(high[0], high[1]),
        ];
        for (index, column) in columns.into_iter().enumerate() {
            // SAFETY: the assertion above has checked that the slice has room for the transposed square.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr().add((half + index) * to_stride).cast(), column) };
        }
    }
}
