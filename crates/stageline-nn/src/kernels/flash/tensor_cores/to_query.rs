//! The kernel that computes the gradient of attention's queries on tensor cores.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::fragments::{
    Eight, Pair, ROWS, add_dot_products, add_weighted, as_left, both, left_of, load, new_tile, write, zeros,
};
use crate::kernels::flash::block::{
    Sizes, blocks_between, column_of_keys, column_of_values, first_seen_block, is_seen,
};

/// Computes the gradients of a block of queries (consecutive positions) of one attention head on tensor cores. One
/// thread block runs for each block of queries, query head and sample.
///
/// The gradients are written to the head's columns of `to_input`, the gradient of attention's input, `[batch, length,
/// (query heads + 2 x key-value heads) x size]`.
#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn tensor_core_attention_to_query<E: Float, I: Int>(
    input: &Tensor<Eight<E>>,
    starts: &Tensor<I>,
    gradient: &Tensor<Eight<E>>,
    logarithms: &Tensor<f32>,
    delta: &Tensor<f32>,
    to_input: &mut Tensor<Pair<E>>,
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
    let columns = comptime!(sizes.columns());

    let mut keys = new_tile::<E>(sizes);
    let mut values = new_tile::<E>(sizes);
    load::<E>(input, &mut keys, sample, first, head * sizes.width, columns, sizes);
    load::<E>(gradient, &mut values, sample, first, head * sizes.width, comptime!(sizes.output_columns()), sizes);
    sync_cube();
    let queries = left_of::<E>(&keys, own, sizes);
    let upstream = left_of::<E>(&values, own, sizes);
    let of_rows = (sample * sizes.query_heads + head) * length;

    let mut sums = zeros(comptime!(sizes.width / 8));
    let from = first_seen_block(first, window, ROWS);
    let until = select(first + ROWS < length, first + ROWS, length);
    for index in 0..blocks_between(from, until, ROWS) {
        let tile_first = from + index * ROWS;
        sync_cube();
        load::<E>(input, &mut keys, sample, tile_first, column_of_keys(key_head, sizes), columns, sizes);
        load::<E>(input, &mut values, sample, tile_first, column_of_values(key_head, sizes), columns, sizes);
        sync_cube();
        for group in 0..comptime!(ROWS / 16) {
            let mut scores = zeros(2usize);
            let mut to_weights = zeros(2usize);
            add_dot_products::<E>(&mut scores, &queries, &keys, group * 16, 1usize, sizes);
            add_dot_products::<E>(&mut to_weights, &upstream, &values, group * 16, 1usize, sizes);
            #[unroll]
            for half in 0..2usize {
                let query = row + half * 8;
                let known = select(query < length, query, length - 1);
                let start = u32::cast_from(starts[sample * length + known]) as usize;
                let first_key = tile_first + group * 16;
                let (logarithm, delta) = (logarithms[of_rows + known], delta[of_rows + known]);
                differentiate(&mut scores, &to_weights, half, known, first_key, window, start, scale, logarithm, delta);
            }
            let to_scores = as_left::<E>(&scores, 0usize);
            add_weighted::<E>(&mut sums, &to_scores, &keys, group * 16, sizes);
        }
    }
    write::<E>(to_input, &sums, &both(scale), sample, row, head * sizes.width, columns, sizes);
}

/// Turns this thread's dot products of one query with 16 keys, starting at `first_key`, into score gradients, without
/// the factor `scale`, which is applied later. `half` selects one of the thread's two queries. `to_weights` are the
/// gradients of the attention weights. `logarithm` is the log-sum-exp of the query's scores, and `delta` the dot
/// product of the query's output and the output's gradient.
#[cube]
#[allow(clippy::too_many_arguments)]
fn differentiate(
    scores: &mut Array<Pair<f32>>,
    to_weights: &Array<Pair<f32>>,
    #[comptime] half: usize,
    query: usize,
    first_key: usize,
    window: usize,
    start: usize,
    scale: f32,
    logarithm: f32,
    delta: f32,
) {
    #[unroll]
    for product in 0..2usize {
        let at = comptime!(product * 2 + half);
        let to_weight = to_weights[at];
        let mut pair = scores[at];
        #[unroll]
        for side in 0..2usize {
            let key = first_key + product * 8 + UNIT_POS_PLANE as usize % 4 * 2 + side;
            let seen = is_seen(query, key, window, start);
            let weight = select(seen, (pair.extract(side) * scale - logarithm).exp(), f32::new(0.0));
            pair.insert(side, weight * (to_weight.extract(side) - delta));
        }
        scores[at] = pair;
    }
}
