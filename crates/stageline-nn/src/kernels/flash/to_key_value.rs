//! The GPU kernel that computes the gradients of attention's keys and values.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::block::{LANES, add_weighted, is_seen, load, product};

/// Computes the gradients of a block of keys and values of one key-value head of attention into their columns in
/// `to_input`. The gradients are added up over the query heads that share the head, and over queries, in ascending
/// order, so their bits do not depend on the order of the thread blocks. There is one cube (thread block) for each
/// block of keys, key-value head and sample.
#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn to_key_value<E: Float, I: Int>(
    input: &Tensor<E>,
    starts: &Tensor<I>,
    gradient: &Tensor<E>,
    logarithms: &Tensor<f32>,
    along: &Tensor<f32>,
    to_input: &mut Tensor<E>,
    window: u32,
    scale: f32,
    #[comptime] rows: usize,
    #[comptime] size: usize,
    #[comptime] query_heads: usize,
    #[comptime] key_heads: usize,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let length = input.shape(1);
    let window = window as usize;
    let first = CUBE_POS_X as usize * rows;
    let key_head = CUBE_POS_Y as usize;
    let sample = CUBE_POS_Z as usize;
    let row = UNIT_POS as usize / LANES;
    let lane = UNIT_POS as usize % LANES;
    let key = first + row;

    let mut keys = Shared::<[f32]>::new_slice(comptime!(rows * (size + 1)));
    let mut values = Shared::<[f32]>::new_slice(comptime!(rows * (size + 1)));
    let mut tile = Shared::<[f32]>::new_slice(comptime!(rows * (size + 1)));
    let mut factors = Shared::<[f32]>::new_slice(comptime!(rows * (rows + 1)));
    let own = comptime!(size.div_ceil(LANES));
    let own_columns = comptime!(rows / LANES);
    let mut to_keys = Array::<f32>::new(own);
    let mut to_values = Array::<f32>::new(own);
    #[unroll]
    for index in 0..own {
        to_keys[index] = f32::new(0.0);
        to_values[index] = f32::new(0.0);
    }
    let mut weights = Array::<f32>::new(own_columns);
    load::<E>(input, &mut keys, sample, first, (query_heads + key_head) * size, rows, size);
    load::<E>(input, &mut values, sample, first, (query_heads + key_heads + key_head) * size, rows, size);

    // Queries from the block's first key on see it, up to the last query in whose window its last key is.
    let last = first + rows - 1 + window;
    let until = select(last < length, last, length);
    let tiles = (until - first + rows - 1) / rows;
    for member in 0..comptime!(query_heads / key_heads) {
        let head = key_head * comptime!(query_heads / key_heads) + member;
        for index in 0..tiles {
            let tile_first = first + index * rows;
            sync_cube();
            load::<E>(input, &mut tile, sample, tile_first, head * size, rows, size);
            sync_cube();
            #[unroll]
            for at in 0..own_columns {
                let column = lane + at * LANES;
                let query = tile_first + column;
                let known = select(query < length, query, length - 1);
                let start = u32::cast_from(starts[sample * length + known]) as usize;
                let logarithm = logarithms[(sample * query_heads + head) * length + known];
                let score = product(&keys, row, &tile, column, size) * scale;
                let seen = query < length && is_seen(query, key, window, start);
                let weight = select(seen, (score - logarithm).exp(), f32::new(0.0));
                weights[at] = weight;
                factors[row * comptime!(rows + 1) + column] = weight;
            }
            sync_cube();
            load::<E>(gradient, &mut tile, sample, tile_first, head * size, rows, size);
            sync_cube();
            add_weighted(&mut to_values, &factors, &tile, row, lane, rows, size);
            sync_cube();
            #[unroll]
            for at in 0..own_columns {
                let column = lane + at * LANES;
                let query = tile_first + column;
                let known = select(query < length, query, length - 1);
                let along = along[(sample * query_heads + head) * length + known];
                let to_weight = product(&values, row, &tile, column, size);
                factors[row * comptime!(rows + 1) + column] = weights[at] * (to_weight - along) * scale;
            }
            sync_cube();
            load::<E>(input, &mut tile, sample, tile_first, head * size, rows, size);
            sync_cube();
            add_weighted(&mut to_keys, &factors, &tile, row, lane, rows, size);
        }
    }

    if key < length {
        let to = (sample * length + key) * comptime!((query_heads + 2 * key_heads) * size);
        #[unroll]
        for index in 0..own {
            let element = lane + index * LANES;
            if element < size {
                let to_key = to + (query_heads + key_head) * size + element;
                to_input[to_key] = E::cast_from(to_keys[index]);
                to_input[to_key + key_heads * size] = E::cast_from(to_values[index]);
            }
        }
    }
}
