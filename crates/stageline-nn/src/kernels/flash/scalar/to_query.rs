//! The GPU kernel that computes the gradient of attention's queries.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::tile::{LANES, add_weighted, clear, load, product, reload, write};
use crate::kernels::flash::block::{
    Sizes, blocks_between, column_of_keys, column_of_values, first_seen_block, is_seen,
};

/// Computes the gradients of a block of queries (consecutive positions) of one attention head. One cube (thread block)
/// runs for each block of queries, query head and sample.
///
/// The gradients are written to the head's columns of `to_input`, the gradient of attention's input, `[batch, length,
/// (query heads + 2 x key-value heads) x size]`.
#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn attention_to_query<E: Float, I: Int>(
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
    let head = CUBE_POS_Y as usize;
    let sample = CUBE_POS_Z as usize;
    let key_head = head / comptime!(sizes.group());
    let row = UNIT_POS as usize / LANES;
    let lane = UNIT_POS as usize % LANES;
    let query = first + row;
    let known = select(query < length, query, length - 1);
    let start = u32::cast_from(starts[sample * length + known]) as usize;
    let logarithm = logarithms[(sample * sizes.query_heads + head) * length + known];
    let delta = delta[(sample * sizes.query_heads + head) * length + known];

    let mut queries = Shared::<[f32]>::new_slice(comptime!(sizes.tile()));
    let mut upstream = Shared::<[f32]>::new_slice(comptime!(sizes.tile()));
    let mut tile = Shared::<[f32]>::new_slice(comptime!(sizes.tile()));
    let mut to_scores = Shared::<[f32]>::new_slice(comptime!(sizes.pairs()));
    let own_columns = comptime!(sizes.own_columns());
    let mut sums = Array::<f32>::new(comptime!(sizes.own_elements()));
    clear(&mut sums, sizes.width);
    let mut to_weights = Array::<f32>::new(own_columns);
    load::<E>(input, &mut queries, sample, first, head * sizes.width, sizes);
    load::<E>(gradient, &mut upstream, sample, first, head * sizes.width, sizes);

    let from = first_seen_block(first, window, sizes.rows);
    let until = select(first + sizes.rows < length, first + sizes.rows, length);
    for index in 0..blocks_between(from, until, sizes.rows) {
        let tile_first = from + index * sizes.rows;
        reload::<E>(input, &mut tile, sample, tile_first, column_of_values(key_head, sizes), sizes);
        #[unroll]
        for at in 0..own_columns {
            to_weights[at] = product(&upstream, row, &tile, lane + at * LANES, sizes.width);
        }
        reload::<E>(input, &mut tile, sample, tile_first, column_of_keys(key_head, sizes), sizes);
        #[unroll]
        for at in 0..own_columns {
            let column = lane + at * LANES;
            let score = product(&queries, row, &tile, column, sizes.width) * scale;
            let seen = is_seen(known, tile_first + column, window, start);
            let weight = select(seen, (score - logarithm).exp(), f32::new(0.0));
            to_scores[row * comptime!(sizes.rows + 1) + column] = weight * (to_weights[at] - delta) * scale;
        }
        sync_cube();
        add_weighted(&mut sums, &to_scores, &tile, row, lane, sizes);
    }

    if query < length {
        let to = (sample * length + query) * comptime!(sizes.columns()) + head * sizes.width;
        write::<E>(to_input, to, &sums, f32::new(1.0), lane, sizes.width);
    }
}
