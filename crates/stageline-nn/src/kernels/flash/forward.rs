//! The GPU kernel of attention's forward. It processes the keys of a block of queries block by block, and corrects each
//! query's largest score and its sum of exponentiated scores as larger scores appear.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::block::{LANES, UNSEEN, add_weighted, is_seen, load, product};

/// Computes attention's outputs for a block of queries of one head on a GPU, and the logarithm of the sum of each
/// query's exponentiated scores. There is one cube (thread block) for each block of queries, query head and sample.
#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn forward<E: Float, I: Int>(
    input: &Tensor<E>,
    starts: &Tensor<I>,
    output: &mut Tensor<E>,
    logarithms: &mut Tensor<f32>,
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
    let head = CUBE_POS_Y as usize;
    let sample = CUBE_POS_Z as usize;
    let key_head = head / comptime!(query_heads / key_heads);
    let row = UNIT_POS as usize / LANES;
    let lane = UNIT_POS as usize % LANES;
    let query = first + row;
    // A row beyond the sequence computes what its last row does, and writes nothing.
    let known = select(query < length, query, length - 1);
    let start = u32::cast_from(starts[sample * length + known]) as usize;

    let mut queries = Shared::<[f32]>::new_slice(comptime!(rows * (size + 1)));
    let mut tile = Shared::<[f32]>::new_slice(comptime!(rows * (size + 1)));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(rows * (rows + 1)));
    let mut of_lanes = Shared::<[f32]>::new_slice(comptime!(rows * LANES));
    let own = comptime!(size.div_ceil(LANES));
    let mut sums = Array::<f32>::new(own);
    #[unroll]
    for index in 0..own {
        sums[index] = f32::new(0.0);
    }
    let mut largest = f32::new(UNSEEN);
    let mut total = f32::new(0.0);
    load::<E>(input, &mut queries, sample, first, head * size, rows, size);

    let seen_first = select(first + 1 > window, first + 1 - window, 0usize);
    let from = seen_first / rows * rows;
    let until = select(first + rows < length, first + rows, length);
    let tiles = (until - from + rows - 1) / rows;
    for index in 0..tiles {
        let tile_first = from + index * rows;
        sync_cube();
        load::<E>(input, &mut tile, sample, tile_first, (query_heads + key_head) * size, rows, size);
        sync_cube();
        let mut most = f32::new(UNSEEN);
        #[unroll]
        for at in 0..comptime!(rows / LANES) {
            let column = lane + at * LANES;
            let score = product(&queries, row, &tile, column, size) * scale;
            let seen = is_seen(known, tile_first + column, window, start);
            let score = select(seen, score, f32::new(UNSEEN));
            weights[row * comptime!(rows + 1) + column] = score;
            most = max(most, score);
        }
        of_lanes[row * LANES + lane] = most;
        sync_cube();
        let mut next = largest;
        #[unroll]
        for other in 0..LANES {
            next = max(next, of_lanes[row * LANES + other]);
        }
        let shrink = (largest - next).exp();
        total *= shrink;
        #[unroll]
        for at in 0..comptime!(rows / LANES) {
            let at = row * comptime!(rows + 1) + lane + at * LANES;
            let score = weights[at];
            // Written so that a score that is not a number stays one.
            let weight = select(score <= f32::new(UNSEEN), f32::new(0.0), (score - next).exp());
            weights[at] = weight;
            total += weight;
        }
        #[unroll]
        for index in 0..own {
            sums[index] *= shrink;
        }
        largest = next;
        load::<E>(input, &mut tile, sample, tile_first, (query_heads + key_heads + key_head) * size, rows, size);
        sync_cube();
        add_weighted(&mut sums, &weights, &tile, row, lane, rows, size);
    }

    sync_cube();
    of_lanes[row * LANES + lane] = total;
    sync_cube();
    let mut total = f32::new(0.0);
    #[unroll]
    for other in 0..LANES {
        total += of_lanes[row * LANES + other];
    }
    if query < length {
        let to = (sample * length + query) * (query_heads * size) + head * size;
        #[unroll]
        for index in 0..own {
            let element = lane + index * LANES;
            if element < size {
                output[to + element] = E::cast_from(sums[index] / total);
            }
        }
        if lane == 0 {
            logarithms[(sample * query_heads + head) * length + query] = largest + total.ln();
        }
    }
}
