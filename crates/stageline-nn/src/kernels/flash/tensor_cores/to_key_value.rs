//! The kernel that computes the gradients of attention's keys and values on tensor cores.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::fragments::{
    Eight, Pair, ROWS, add_products, as_left, left_of, load, new_tile, rows_as_columns, rows_as_rows, write, zeros,
};
use crate::kernels::flash::block::{Sizes, blocks_between, column_of_keys, column_of_values, is_seen};

/// Computes the gradients of a block of keys and values (consecutive positions) of one key-value head of attention on
/// tensor cores. One thread block runs for each block of keys, key-value head and sample.
///
/// The gradients go to the head's columns of `to_input`, the gradient of attention's input, `[batch, length, (query
/// heads + 2 x key-value heads) x size]`. They are sums over queries and query heads in a fixed order, so their bits do
/// not depend on the order of the thread blocks.
#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn to_key_value<E: Float, I: Int>(
    input: &Tensor<Eight<E>>,
    starts: &Tensor<I>,
    gradient: &Tensor<Eight<E>>,
    logarithms: &Tensor<f32>,
    along: &Tensor<f32>,
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
    let mut tile_along = Shared::<[f32]>::new_slice(ROWS);
    load::<E>(input, &mut queries, sample, first, column_of_keys(key_head, sizes), columns, sizes);
    load::<E>(input, &mut upstream, sample, first, column_of_values(key_head, sizes), columns, sizes);
    sync_cube();
    let keys = left_of::<E>(&queries, own, sizes);
    let values = left_of::<E>(&upstream, own, sizes);

    let mut to_keys = zeros(comptime!(sizes.width / 8));
    let mut to_values = zeros(comptime!(sizes.width / 8));
    // The queries that see a key of the block begin at the block's first key, and end with the last query whose window
    // includes the block's last key.
    let last = first + ROWS - 1 + window;
    let until = select(last < length, last, length);
    let tiles = blocks_between(first, until, ROWS);
    for member in 0..comptime!(sizes.group()) {
        let head = key_head * comptime!(sizes.group()) + member;
        let of_rows = (sample * sizes.query_heads + head) * length;
        for index in 0..tiles {
            let tile_first = first + index * ROWS;
            sync_cube();
            load::<E>(input, &mut queries, sample, tile_first, head * sizes.width, columns, sizes);
            let upstream_columns = comptime!(sizes.query_heads * sizes.width);
            load::<E>(gradient, &mut upstream, sample, tile_first, head * sizes.width, upstream_columns, sizes);
            let unit = UNIT_POS as usize;
            if unit < ROWS {
                let known = select(tile_first + unit < length, tile_first + unit, length - 1);
                tile_starts[unit] = u32::cast_from(starts[sample * length + known]);
                tile_logarithms[unit] = logarithms[of_rows + known];
                tile_along[unit] = along[of_rows + known];
            }
            sync_cube();
            for group in 0..comptime!(ROWS / 16) {
                let mut weights = zeros(2usize);
                let mut to_scores = zeros(2usize);
                #[unroll]
                for step in 0..comptime!(sizes.width / 16) {
                    let right = rows_as_columns::<E>(&queries, group * 16, step * 16, sizes);
                    add_products::<E>(&mut weights, 0usize, &keys, step, &right);
                    let right = rows_as_columns::<E>(&upstream, group * 16, step * 16, sizes);
                    add_products::<E>(&mut to_scores, 0usize, &values, step, &right);
                }
                #[unroll]
                for product in 0..2usize {
                    #[unroll]
                    for side in 0..2usize {
                        let column = group * 16 + product * 8 + UNIT_POS_PLANE as usize % 4 * 2 + side;
                        let query = tile_first + column;
                        let start = tile_starts[column] as usize;
                        #[unroll]
                        for half in 0..2usize {
                            let mut weight_pair = weights[product * 2 + half];
                            let mut score_pair = to_scores[product * 2 + half];
                            let seen = query < length && is_seen(query, row + half * 8, window, start);
                            let score = weight_pair.extract(side) * scale;
                            let weight = select(seen, (score - tile_logarithms[column]).exp(), f32::new(0.0));
                            let to_weight = score_pair.extract(side) - tile_along[column];
                            weight_pair.insert(side, weight);
                            score_pair.insert(side, weight * to_weight * scale);
                            weights[product * 2 + half] = weight_pair;
                            to_scores[product * 2 + half] = score_pair;
                        }
                    }
                }
                let weights = as_left::<E>(&weights, 0usize);
                let to_scores = as_left::<E>(&to_scores, 0usize);
                #[unroll]
                for pair in 0..comptime!(sizes.width / 16) {
                    let right = rows_as_rows::<E>(&upstream, group * 16, pair * 16, sizes);
                    add_products::<E>(&mut to_values, comptime!(2 * pair), &weights, 0usize, &right);
                    let right = rows_as_rows::<E>(&queries, group * 16, pair * 16, sizes);
                    add_products::<E>(&mut to_keys, comptime!(2 * pair), &to_scores, 0usize, &right);
                }
            }
        }
    }

    let mut factors = Array::<f32>::new(2usize);
    factors[0] = f32::new(1.0);
    factors[1] = f32::new(1.0);
    write::<E>(to_input, &to_keys, &factors, sample, row, column_of_keys(key_head, sizes), columns, sizes);
    write::<E>(to_input, &to_values, &factors, sample, row, column_of_values(key_head, sizes), columns, sizes);
}
