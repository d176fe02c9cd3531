//! The kernel of attention's forward pass on tensor cores. It processes the keys of a block of queries tile by tile.
//! When a larger score appears, it rescales the query's sum of exponentiated scores to the new maximum (online
//! softmax).

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::fragments::{
    Eight, Pair, ROWS, add_dot_products, add_weighted, as_left, both, left_of, load, new_tile, write, zeros,
};
use crate::kernels::flash::block::{
    Sizes, UNSEEN, blocks_between, column_of_keys, column_of_values, first_seen_block, is_seen,
};

/// Computes attention's outputs for a block of queries of one head on tensor cores, and the log-sum-exp of each query's
/// scores. One thread block runs for each block of queries, query head and sample.
#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn tensor_core_attention_forward<E: Float, I: Int>(
    input: &Tensor<Eight<E>>,
    starts: &Tensor<I>,
    output: &mut Tensor<Pair<E>>,
    logarithms: &mut Tensor<f32>,
    window: u32,
    scale: f32,
    #[comptime] sizes: Sizes,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let length = input.shape(1);
    let window = window as usize;
    // Late queries attend to the most keys, so their blocks start first.
    let first = (blocks_between(0, length, ROWS) - 1 - CUBE_POS_X as usize) * ROWS;
    let head = CUBE_POS_Y as usize;
    let sample = CUBE_POS_Z as usize;
    let key_head = head / comptime!(sizes.group());
    let own = UNIT_POS as usize / 32 * 16;
    let row = first + own + UNIT_POS_PLANE as usize / 4;

    let mut keys = new_tile::<E>(sizes);
    let mut values = new_tile::<E>(sizes);
    load::<E>(input, &mut keys, sample, first, head * sizes.width, comptime!(sizes.columns()), sizes);
    sync_cube();
    let queries = left_of::<E>(&keys, own, sizes);

    let mut sums = zeros(comptime!(sizes.width / 8));
    let mut largest = both(f32::new(UNSEEN));
    let mut totals = both(f32::new(0.0));
    let from = first_seen_block(first, window, ROWS);
    let until = select(first + ROWS < length, first + ROWS, length);
    for index in 0..blocks_between(from, until, ROWS) {
        let tile_first = from + index * ROWS;
        sync_cube();
        let columns = comptime!(sizes.columns());
        load::<E>(input, &mut keys, sample, tile_first, column_of_keys(key_head, sizes), columns, sizes);
        load::<E>(input, &mut values, sample, tile_first, column_of_values(key_head, sizes), columns, sizes);
        sync_cube();
        let mut scores = zeros(comptime!(ROWS / 8));
        add_dot_products::<E>(&mut scores, &queries, &keys, 0usize, comptime!(ROWS / 16), sizes);
        #[unroll]
        for half in 0..2usize {
            let query = row + half * 8;
            let known = select(query < length, query, length - 1);
            let start = u32::cast_from(starts[sample * length + known]) as usize;
            let next = hide_unseen(&mut scores, largest[half], half, known, tile_first, window, start, scale);
            let shrink = (largest[half] - next).exp();
            largest[half] = next;
            totals[half] = totals[half] * shrink + weigh(&mut scores, next, half);
            #[unroll]
            for product in 0..comptime!(sizes.width / 8) {
                sums[product * 2 + half] *= Vector::new(shrink);
            }
        }
        #[unroll]
        for step in 0..comptime!(ROWS / 16) {
            let weights = as_left::<E>(&scores, comptime!(2 * step));
            add_weighted::<E>(&mut sums, &weights, &values, step * 16, sizes);
        }
    }

    let mut factors = both(f32::new(1.0));
    #[unroll]
    for half in 0..2usize {
        let total = sum_of_four(totals[half]);
        factors[half] /= total;
        let query = row + half * 8;
        if query < length && UNIT_POS_PLANE.is_multiple_of(4) {
            logarithms[(sample * sizes.query_heads + head) * length + query] = largest[half] + total.ln();
        }
    }
    let columns = comptime!(sizes.output_columns());
    write::<E>(output, &sums, &factors, sample, row, head * sizes.width, columns, sizes);
}

/// Scales this thread's attention scores of one query, at the position `query`, and replaces the scores of keys that
/// the query does not attend to with [`UNSEEN`]. Returns the query's largest score so far: the maximum of these scores
/// and of `before`, its largest score in earlier tiles. `half` selects one of the thread's two queries.
#[cube]
#[allow(clippy::too_many_arguments)]
fn hide_unseen(
    scores: &mut Array<Pair<f32>>,
    before: f32,
    #[comptime] half: usize,
    query: usize,
    first_key: usize,
    window: usize,
    start: usize,
    scale: f32,
) -> f32 {
    let place = UNIT_POS_PLANE as usize % 4;
    let mut largest = before;
    #[unroll]
    for product in 0..comptime!(ROWS / 8) {
        let mut pair = scores[product * 2 + half];
        #[unroll]
        for side in 0..2usize {
            let key = first_key + product * 8 + place * 2 + side;
            let score = select(is_seen(query, key, window, start), pair.extract(side) * scale, f32::new(UNSEEN));
            pair.insert(side, score);
            largest = max(largest, score);
        }
        scores[product * 2 + half] = pair;
    }
    let largest = max(largest, plane_shuffle_xor(largest, 1));
    max(largest, plane_shuffle_xor(largest, 2))
}

/// Replaces this thread's attention scores of one query by unnormalised attention weights, `exp(score - largest)`, and
/// returns their sum. `half` selects one of the thread's two queries.
#[cube]
fn weigh(scores: &mut Array<Pair<f32>>, largest: f32, #[comptime] half: usize) -> f32 {
    let mut sum = f32::new(0.0);
    #[unroll]
    for product in 0..comptime!(ROWS / 8) {
        let mut pair = scores[product * 2 + half];
        #[unroll]
        for side in 0..2usize {
            let score = pair.extract(side);
            // The comparison keeps a NaN score as NaN, so that it is visible in the output.
            let weight = select(score <= f32::new(UNSEEN), f32::new(0.0), (score - largest).exp());
            pair.insert(side, weight);
            sum += weight;
        }
        scores[product * 2 + half] = pair;
    }
    sum
}

/// Returns the sum of `number` over the four threads of a plane (warp) that hold parts of the same rows.
#[cube]
fn sum_of_four(number: f32) -> f32 {
    let number = number + plane_shuffle_xor(number, 1);
    number + plane_shuffle_xor(number, 2)
}
