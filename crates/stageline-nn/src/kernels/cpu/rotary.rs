//! Concatenates queries, keys and values on the CPU, and rotates queries and keys by their positions (rotary
//! embedding).

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use rayon::prelude::*;

use super::numbers::{numbers, of_numbers};
use super::wide::wide;

/// Number of positions that one CPU core copies and then rotates at a time, so small that the copied elements are still
/// in the core's cache.
const POSITIONS: usize = 16;

/// Cosines and sines of a rotary embedding's angles, each `[length, half]`, for heads of `2 x half` elements.
#[derive(Clone, Copy)]
struct Angles<'a> {
    cosines: &'a [f32],
    sines: &'a [f32],
    length: usize,
    half: usize,
}

impl<'a> Angles<'a> {
    fn of([cosines, sines]: &'a [FloatTensor<Flex>; 2]) -> Self {
        let shape = cosines.shape();
        Self { cosines: numbers(cosines), sines: numbers(sines), length: shape[0], half: shape[1] }
    }
}

/// A range of columns of a contiguous tensor `[batch, length, width]`. Several such ranges are concatenated to an
/// output.
#[derive(Clone, Copy)]
struct Columns<'a> {
    numbers: &'a [f32],
    width: usize,
    first: usize,
    count: usize,
}

impl<'a> Columns<'a> {
    fn of(tensor: &'a FloatTensor<Flex>, first: usize, count: usize) -> Self {
        Self { numbers: numbers(tensor), width: tensor.shape()[2], first, count }
    }

    /// Returns one row's elements in these columns. `row` is a zero-based index over the rows of all samples.
    fn row(self, row: usize) -> &'a [f32] {
        &self.numbers[row * self.width + self.first..][..self.count]
    }
}

/// Concatenates queries, keys and values, each `[batch, length, columns]`, by their columns to `[batch, length, all
/// columns]`, and rotates the queries and keys. `angles` are the cosines and sines, each `[length, size / 2]`. In each
/// head of `size` elements, element `i` and element `i + size / 2` are the coordinates of a point, which is rotated by
/// an angle that depends on the position. All tensors must be contiguous.
pub fn joined(parts: &[FloatTensor<Flex>; 3], angles: &[FloatTensor<Flex>; 2]) -> FloatTensor<Flex> {
    let all = parts.each_ref().map(|part| Columns::of(part, 0, part.shape()[2]));
    rotated(parts[0].shape()[0], &all, all[0].count + all[1].count, Angles::of(angles))
}

/// Returns the gradients of the loss with respect to the queries, keys and values that [`joined`] concatenated.
/// `gradient` is the gradient with respect to the concatenated output. `columns` are the numbers of columns of the
/// queries, keys and values. `angles` are the cosines and the negated sines of the forward pass's angles, so that the
/// gradients are rotated back. All tensors must be contiguous.
pub fn to_parts(
    gradient: &FloatTensor<Flex>,
    columns: [usize; 3],
    angles: &[FloatTensor<Flex>; 2],
) -> [FloatTensor<Flex>; 3] {
    let [query, key, value] = columns;
    let parts = [(0, query, query), (query, key, key), (query + key, value, 0)];
    let batch = gradient.shape()[0];
    parts.map(|(first, count, turned)| {
        rotated(batch, &[Columns::of(gradient, first, count)], turned, Angles::of(angles))
    })
}

/// Concatenates `parts` by columns, in each position of `batch` samples, and rotates the heads in the first `turned`
/// columns of the result by `angles`.
fn rotated(batch: usize, parts: &[Columns], turned: usize, angles: Angles) -> FloatTensor<Flex> {
    let columns: usize = parts.iter().map(|part| part.count).sum();
    let count = batch * angles.length * columns;
    let mut output = Vec::with_capacity(count);
    let places = output.spare_capacity_mut()[..count].par_chunks_mut((POSITIONS * columns).max(1)).enumerate();
    places.for_each(|(index, places)| {
        let first = index * POSITIONS;
        for (row, places) in (first..).zip(places.chunks_exact_mut(columns.max(1))) {
            let mut rest = places;
            for part in parts {
                let (place, after) = rest.split_at_mut(part.count);
                place.write_copy_of_slice(part.row(row));
                rest = after;
            }
        }
        // SAFETY: the loop above has written all columns of all rows in `places`.
        rotate(unsafe { places.assume_init_mut() }, first, columns, turned, angles);
    });
    // SAFETY: the chunks cover all `count` elements, and the loop above has written every element of each chunk.
    unsafe { output.set_len(count) };
    of_numbers(output, [batch, angles.length, columns])
}

wide! {
    // Rotates the heads in the first `turned` of the `width` columns of some rows in place. `first` is the index of the
    // first row among the rows of all samples.
    fn rotate(rows: &mut [f32], first: usize, width: usize, turned: usize, angles: Angles) {
        let Angles { cosines, sines, length, half } = angles;
        for (index, row) in rows.chunks_exact_mut(width.max(1)).enumerate() {
            let angles = (first + index) % length * half;
            let (cosines, sines) = (&cosines[angles..][..half], &sines[angles..][..half]);
            for head in row[..turned].chunks_exact_mut(2 * half) {
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
