//! Rotates queries and keys by their positions (rotary embedding) on the CPU.

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use rayon::prelude::*;

use super::numbers::{numbers, of_numbers};
use super::wide::wide;

/// The number of positions of a sequence whose rotary embedding one CPU core computes at a time.
const POSITIONS: usize = 64;

/// Rotates the heads of a contiguous input `[batch, length, heads x size]`. In each head, element `i` and element `i +
/// size / 2` are the coordinates of a point. The point is rotated by an angle that depends on the position. The cosines
/// and sines of the angles are contiguous tensors `[length, size / 2]`.
pub fn rotated(input: &FloatTensor<Flex>, cosines: &FloatTensor<Flex>, sines: &FloatTensor<Flex>) -> FloatTensor<Flex> {
    let (shape, half) = (input.shape(), cosines.shape()[1]);
    let (length, width) = (shape[1], shape[2]);
    let mut output = numbers(input).to_vec();
    for sample in output.chunks_exact_mut((length * width).max(1)) {
        let angles = numbers(cosines).par_chunks(POSITIONS * half).zip(numbers(sines).par_chunks(POSITIONS * half));
        let rows = sample.par_chunks_mut(POSITIONS * width);
        rows.zip(angles).for_each(|(rows, angles)| rotate(rows, angles, width, half));
    }
    of_numbers(output, shape)
}

wide! {
    // Rotates every head of some positions in place; `angles` are the cosines and sines of these positions.
    fn rotate(rows: &mut [f32], angles: (&[f32], &[f32]), width: usize, half: usize) {
        let (cosines, sines) = angles;
        let angles = cosines.chunks_exact(half).zip(sines.chunks_exact(half));
        for (row, (cosines, sines)) in rows.chunks_exact_mut(width).zip(angles) {
            for head in row.chunks_exact_mut(2 * half) {
                let (first, second) = head.split_at_mut(half);
                for at in 0..half {
                    let (x, y) = (first[at], second[at]);
                    first[at] = x * cosines[at] - y * sines[at];
                    second[at] = y * cosines[at] + x * sines[at];
                }
            }
        }
    }
}
