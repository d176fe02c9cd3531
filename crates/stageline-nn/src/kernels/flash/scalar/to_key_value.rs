//! The GPU kernel that computes the gradients of attention's keys and values.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::tile::{LANES, add_weighted, clear, load, product, reload, write};
use crate::kernels::flash::block::{Sizes, blocks_between, column_of_keys, column_of_values, is_seen};

/// Computes the gradients of a block of keys and values (consecutive positions) of one key-value head of attention. One
/// cube (thread block) runs for each block of keys, key-value head and sample.
///
/// The gradients are written to the head's columns of `to_input`, the gradient of attention's input, `[batch, length,
/// (query heads + 2 x key-value heads) x size]`. They are sums over queries and query heads in a fixed order, so their
/// bits do not depend on the order of the thread blocks.
#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn attention_to_key_value<E: Float, I: Int>(
    input: &Tensor<E>,
    starts: &Tensor<I>,
    gradient: &Tensor<E>,
    logarithms: &Tensor<f32>,
    delta: &Tensor<f32>,
    to_input: &mut Tensor<E>,
    window: u32,
    scale: f32,
    #[comptime] sizes: Sizes,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let length = input.shape(1);
    let window = window as usize;
    let first = CUBE_POS_X as usize * sizes.rows;
    let key_head = CUBE_POS_Y as usize;
    let sample = CUBE_POS_Z as usize;
    let row = UNIT_POS as usize / LANES;
    let lane = UNIT_POS as usize % LANES;
    let key = first + row;

    let mut keys = Shared::<[f32]>::new_slice(comptime!(sizes.tile()));
    let mut values = Shared::<[f32]>::new_slice(comptime!(sizes.tile()));
    let mut tile = Shared::<[f32]>::new_slice(comptime!(sizes.tile()));
    let mut factors = Shared::<[f32]>::new_slice(comptime!(sizes.pairs()));
    let own_columns = comptime!(sizes.own_columns());
    let mut to_keys = Array::<f32>::new(comptime!(sizes.own_elements()));
    let mut to_values = Array::<f32>::new(comptime!(sizes.own_elements()));
    clear(&mut to_keys, sizes.width);
    clear(&mut to_values, sizes.width);
    let mut weights = Array::<f32>::new(own_columns);
    load::<E>(input, &mut keys, sample, first, column_of_keys(key_head, sizes), sizes);
    load::<E>(input, &mut values, sample, first, column_of_values(key_head, sizes), sizes);

    // The block's keys are attended to by the queries from the first key's position on, up to the last query whose
    // window includes the block's last key.
    let last = first + sizes.rows - 1 + window;
    let until = select(last < length, last, length);
    let tiles = blocks_between(first, until, sizes.rows);
    for member in 0..comptime!(sizes.group()) {
        let head = key_head * comptime!(sizes.group()) + member;
        for index in 0..tiles {
            let tile_first = first + index * sizes.rows;
            reload::<E>(input, &mut tile, sample, tile_first, head * sizes.width, sizes);
            // Computes the attention weights that the queries of the tile give to this thread's key.
            #[unroll]
            for at in 0..own_columns {
                let query = tile_first + lane + at * LANES;
                let known = select(query < length, query, length - 1);
                let start = u32::cast_from(starts[sample * length + known]) as usize;
                let logarithm = logarithms[(sample * sizes.query_heads + head) * length + known];
                let score = product(&keys, row, &tile, lane + at * LANES, sizes.width) * scale;
                let seen = query < length && is_seen(query, key, window, start);
                weights[at] = select(seen, (score - logarithm).exp(), f32::new(0.0));
            }
            write_own(&weights, &mut factors, row, lane, sizes.rows);
            reload::<E>(gradient, &mut tile, sample, tile_first, head * sizes.width, sizes);
            add_weighted(&mut to_values, &factors, &tile, row, lane, sizes);
            sync_cube();
            #[unroll]
            for at in 0..own_columns {
                let query = tile_first + lane + at * LANES;
                let known = select(query < length, query, length - 1);
                let delta = delta[(sample * sizes.query_heads + head) * length + known];
                let to_weight = product(&values, row, &tile, lane + at * LANES, sizes.width);
                weights[at] = weights[at] * (to_weight - delta) * scale;
            }
            write_own(&weights, &mut factors, row, lane, sizes.rows);
            reload::<E>(input, &mut tile, sample, tile_first, head * sizes.width, sizes);
            add_weighted(&mut to_keys, &factors, &tile, row, lane, sizes);
        }
    }

    if key < length {
        let to = (sample * length + key) * comptime!(sizes.columns());
        write::<E>(to_input, to + column_of_keys(key_head, sizes), &to_keys, f32::new(1.0), lane, sizes.width);
        write::<E>(to_input, to + column_of_values(key_head, sizes), &to_values, f32::new(1.0), lane, sizes.width);
    }
}

/// Writes one GPU thread's `numbers` to row `row` of a square matrix in shared memory, which has a row for each key and
/// a column for each query. The first value goes to the column `lane`, and each further value [`LANES`] columns later.
#[cube]
fn write_own(numbers: &Array<f32>, to: &mut Shared<[f32]>, row: usize, lane: usize, #[comptime] rows: usize) {
    #[unroll]
    for at in 0..comptime!(rows / LANES) {
        to[row * comptime!(rows + 1) + lane + at * LANES] = numbers[at];
    }
}
