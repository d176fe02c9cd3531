//! The kernel that computes the gradients of attention's keys and values on tensor cores.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::fragments::{
    Eight, Pair, ROWS, add_dot_products, add_weighted, as_left, both, left_of, load, new_tile, write, zeros,
};
use crate::kernels::flash::block::{Sizes, blocks_between, column_of_keys, column_of_values, is_seen};

/// Computes the gradients of a block of keys and values (consecutive positions) of one key-value head of attention on
/// tensor cores. One thread block runs for each block of keys, key-value head and sample.
///
/// The gradients are written to the head's columns of `to_input`, the gradient of attention's input, `[batch, length,
/// (query heads + 2 x key-value heads) x size]`. They are sums over queries and query heads in a fixed order, so their
/// bits do not depend on the order of the thread blocks.
#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn tensor_core_attention_to_key_value<E: Float, I: Int>(
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
    let first = CUBE_POS_X as usize * ROWS;
    let key_head = CUBE_POS_Y as usize;
    let sample = CUBE_POS_Z as usize;
    let own = UNIT_POS as usize / 32 * 16;
    let row = first + own + UNIT_POS_PLANE as usize / 4;
    let columns = comptime!(sizes.columns());

    let mut queries = new_tile::<E>(sizes);
    let mut upstream = new_tile::<E>(sizes);
    let mut tile_starts = Shared::<[u32]>::new_slice(ROWS);
    let mut tile_logarithms = Shared::<[f32]>::new_slice(ROWS);
    let mut tile_delta = Shared::<[f32]>::new_slice(ROWS);
    load::<E>(input, &mut queries, sample, first, column_of_keys(key_head, sizes), columns, sizes);
    load::<E>(input, &mut upstream, sample, first, column_of_values(key_head, sizes), columns, sizes);
    sync_cube();
    let keys = left_of::<E>(&queries, own, sizes);
    let values = left_of::<E>(&upstream, own, sizes);

    let mut to_keys = zeros(comptime!(sizes.width / 8));
    let mut to_values = zeros(comptime!(sizes.width / 8));
    // The block's keys are attended to by the queries from the first key's position on, up to the last query whose
    // window includes the block's last key.
    let tiles = blocks_between(first, min(first + ROWS - 1 + window, length), ROWS);
    for member in 0..comptime!(sizes.group()) {
        let head = key_head * comptime!(sizes.group()) + member;
        let of_rows = (sample * sizes.query_heads + head) * length;
        for index in 0..tiles {
            let tile_first = first + index * ROWS;
            sync_cube();
            load::<E>(input, &mut queries, sample, tile_first, head * sizes.width, columns, sizes);
            let of_output = comptime!(sizes.output_columns());
            load::<E>(gradient, &mut upstream, sample, tile_first, head * sizes.width, of_output, sizes);
            let unit = UNIT_POS as usize;
            if unit < ROWS {
                let known = select(tile_first + unit < length, tile_first + unit, length - 1);
                tile_starts[unit] = u32::cast_from(starts[sample * length + known]);
                tile_logarithms[unit] = logarithms[of_rows + known];
                tile_delta[unit] = delta[of_rows + known];
            }
            sync_cube();
            for group in 0..comptime!(ROWS / 16) {
                let mut weights = zeros(2usize);
                let mut to_scores = zeros(2usize);
                add_dot_products::<E>(&mut weights, &keys, &queries, group * 16, 1usize, sizes);
                add_dot_products::<E>(&mut to_scores, &values, &upstream, group * 16, 1usize, sizes);
                #[unroll]
                for place in 0..4usize {
                    let column = group * 16 + place / 2 * 8 + UNIT_POS_PLANE as usize % 4 * 2 + place % 2;
                    let query = tile_first + column;
                    // Queries beyond the end of the sequence attend to no key.
                    let window = select(query < length, window, 0usize);
                    let (logarithm, delta) = (tile_logarithms[column], tile_delta[column]);
                    let start = tile_starts[column] as usize;
                    weigh(&mut weights, &mut to_scores, place, query, row, window, start, scale, logarithm, delta);
                }
                add_weighted::<E>(&mut to_values, &as_left::<E>(&weights, 0usize), &upstream, group * 16, sizes);
                add_weighted::<E>(&mut to_keys, &as_left::<E>(&to_scores, 0usize), &queries, group * 16, sizes);
            }
        }
    }
    write::<E>(to_input, &to_keys, &both(scale), sample, row, column_of_keys(key_head, sizes), columns, sizes);
    let column = column_of_values(key_head, sizes);
    write::<E>(to_input, &to_values, &both(f32::new(1.0)), sample, row, column, columns, sizes);
}

/// Turns this thread's dot products of one query with two keys (`key` and `key + 8`) into attention weights. Turns the
/// gradients of these weights into score gradients, without the factor `scale`, which is applied later. `place` is the
/// query's index among the four queries that the thread holds. `logarithm` is the log-sum-exp of the query's scores,
/// and `delta` the dot product of the query's output and the output's gradient.
#[cube]
#[allow(clippy::too_many_arguments)]
fn weigh(
    weights: &mut Array<Pair<f32>>,
    to_scores: &mut Array<Pair<f32>>,
    #[comptime] place: usize,
    query: usize,
    key: usize,
    window: usize,
    start: usize,
    scale: f32,
    logarithm: f32,
    delta: f32,
) {
    let side = comptime!(place % 2);
    #[unroll]
    for half in 0..2usize {
        let at = comptime!(place / 2 * 2 + half);
        let mut weight_pair = weights[at];
        let mut score_pair = to_scores[at];
        let seen = is_seen(query, key + half * 8, window, start);
        let weight = select(seen, (weight_pair.extract(side) * scale - logarithm).exp(), f32::new(0.0));
        weight_pair.insert(side, weight);
        score_pair.insert(side, weight * (score_pair.extract(side) - delta));
        weights[at] = weight_pair;
        to_scores[at] = score_pair;
    }
}
