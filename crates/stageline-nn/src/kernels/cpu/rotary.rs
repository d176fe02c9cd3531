//! Joins queries, keys and values on the CPU, with queries and keys rotated by their positions (rotary embedding).

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use rayon::prelude::*;

use super::numbers::{numbers, of_numbers};
use super::wide::wide;

/// The number of positions that one CPU core computes at a time, so that a part stays in the core's cache between its
/// copy and its rotation.
const POSITIONS: usize = 16;

/// The cosines and sines of a rotary embedding's angles, each `[length, half]`, where a head has `2 x half` elements.
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

/// Joins queries, keys and values, each `[batch, length, columns]`, by their columns, and rotates the queries and keys.
/// In each head, element `i` and element `i + size / 2` are the coordinates of a point, which is rotated by an angle
/// that depends on the position. All tensors must be contiguous.
pub fn joined(parts: &[FloatTensor<Flex>; 3], angles: &[FloatTensor<Flex>; 2]) -> FloatTensor<Flex> {
    let (shape, angles) = (parts[0].shape(), Angles::of(angles));
    let columns = [0, 1, 2].map(|part: usize| parts[part].shape()[2]);
    let (width, turned) = (columns.iter().sum::<usize>(), columns[0] + columns[1]);
    let rows = shape[0] * shape[1];
    let mut output = Vec::with_capacity(rows * width);
    let places = output.spare_capacity_mut()[..rows * width].par_chunks_mut((POSITIONS * width).max(1)).enumerate();
    places.for_each(|(index, places)| {
        let first = index * POSITIONS;
        for (row, places) in (first..).zip(places.chunks_exact_mut(width.max(1))) {
            let mut rest = places;
            for (part, columns) in parts.iter().zip(columns) {
                let (place, after) = rest.split_at_mut(columns);
                place.write_copy_of_slice(&numbers(part)[row * columns..][..columns]);
                rest = after;
            }
        }
        // SAFETY: all columns of all rows were just written.
        rotate(unsafe { places.assume_init_mut() }, first, width, turned, angles);
    });
    // SAFETY: the places are all elements, and every row of them was written.
    unsafe { output.set_len(rows * width) };
    of_numbers(output, [shape[0], shape[1], width])
}

/// Returns the gradients of queries, keys and values, given the gradient of their join. `columns` are the numbers of
/// their columns, and the sines are those of the opposite angles. All tensors must be contiguous.
pub fn to_parts(
    gradient: &FloatTensor<Flex>,
    columns: [usize; 3],
    angles: &[FloatTensor<Flex>; 2],
) -> [FloatTensor<Flex>; 3] {
    let (shape, angles) = (gradient.shape(), Angles::of(angles));
    let (rows, width) = (shape[0] * shape[1], shape[2]);
    let [query, key, value] = columns;
    let parts = [(0, query, query), (query, key, key), (query + key, value, 0)];
    parts.map(|(before, columns, turned)| {
        let mut output = Vec::with_capacity(rows * columns);
        let places = output.spare_capacity_mut()[..rows * columns].par_chunks_mut((POSITIONS * columns).max(1));
        places.enumerate().for_each(|(index, places)| {
            let first = index * POSITIONS;
            for (row, place) in (first..).zip(places.chunks_exact_mut(columns.max(1))) {
                place.write_copy_of_slice(&numbers(gradient)[row * width + before..][..columns]);
            }
            // SAFETY: all rows were just written.
            rotate(unsafe { places.assume_init_mut() }, first, columns, turned, angles);
        });
        // SAFETY: the places are all elements, and every row of them was written.
        unsafe { output.set_len(rows * columns) };
        of_numbers(output, [shape[0], shape[1], columns])
    })
}

wide! {
    // Rotates the heads in the first `turned` of the `width` columns of some rows in place. The first row has the index
    // `first` among the rows of all samples.
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
