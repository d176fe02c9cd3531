//! The GPU kernel of attention's forward pass. It processes the keys of a block of queries block by block. When a
//! larger score appears, it rescales the query's sum of exponentiated scores to the new maximum (online softmax).

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::tile::{LANES, add_weighted, clear, load, product, reload, write};
use crate::kernels::flash::block::{
    Sizes, UNSEEN, blocks_between, column_of_keys, column_of_values, first_seen_block, is_seen,
};

/// Computes attention's outputs for a block of queries of one head on a GPU, and the log-sum-exp of each query's
/// scores. One cube (thread block) runs for each block of queries, query head and sample.
#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn attention_forward<E: Float, I: Int>(
    input: &Tensor<E>,
    starts: &Tensor<I>,
    output: &mut Tensor<E>,
    logarithms: &mut Tensor<f32>,
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
    // A row beyond the end of the sequence uses the last query's position, so that it reads valid memory. It writes no
    // result.
    let known = select(query < length, query, length - 1);
    let start = u32::cast_from(starts[sample * length + known]) as usize;

    let mut queries = Shared::<[f32]>::new_slice(comptime!(sizes.tile()));
    let mut tile = Shared::<[f32]>::new_slice(comptime!(sizes.tile()));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(sizes.pairs()));
    let mut of_lanes = Shared::<[f32]>::new_slice(comptime!(sizes.rows * LANES));
    let mut sums = Array::<f32>::new(comptime!(sizes.own_elements()));
    clear(&mut sums, sizes.width);
    let mut largest = f32::new(UNSEEN);
    let mut total = f32::new(0.0);
    load::<E>(input, &mut queries, sample, first, head * sizes.width, sizes);

    let from = first_seen_block(first, window, sizes.rows);
    let until = select(first + sizes.rows < length, first + sizes.rows, length);
    for index in 0..blocks_between(from, until, sizes.rows) {
        let tile_first = from + index * sizes.rows;
        reload::<E>(input, &mut tile, sample, tile_first, column_of_keys(key_head, sizes), sizes);
        let most = score(&queries, &tile, &mut weights, known, tile_first, window, start, scale, sizes);
        of_lanes[row * LANES + lane] = most;
        sync_cube();
        let next = largest_of(&of_lanes, row, largest);
        let shrink = (largest - next).exp();
        total = total * shrink + weigh(&mut weights, row, lane, next, sizes.rows);
        #[unroll]
        for index in 0..comptime!(sizes.own_elements()) {
            sums[index] *= shrink;
        }
        largest = next;
        load::<E>(input, &mut tile, sample, tile_first, column_of_values(key_head, sizes), sizes);
        sync_cube();
        add_weighted(&mut sums, &weights, &tile, row, lane, sizes);
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
        let to = ((sample * length + query) * sizes.query_heads + head) * sizes.width;
        write::<E>(output, to, &sums, f32::new(1.0) / total, lane, sizes.width);
        if lane == 0 {
            logarithms[(sample * sizes.query_heads + head) * length + query] = largest + total.ln();
        }
    }
}

/// Computes the attention scores of the query at the position `query` for this GPU thread's keys of a tile. Writes the
/// scores to `scores`, and returns the largest. `first_key` is the position of the tile's first key, and `start` the
/// position where the query's document begins. Keys that the query does not attend to get the score [`UNSEEN`].
#[cube]
#[allow(clippy::too_many_arguments)]
fn score(
    queries: &Shared<[f32]>,
    keys: &Shared<[f32]>,
    scores: &mut Shared<[f32]>,
    query: usize,
    first_key: usize,
    window: usize,
    start: usize,
    scale: f32,
    #[comptime] sizes: Sizes,
) -> f32 {
    let row = UNIT_POS as usize / LANES;
    let lane = UNIT_POS as usize % LANES;
    let mut most = f32::new(UNSEEN);
    #[unroll]
    for at in 0..comptime!(sizes.own_columns()) {
        let column = lane + at * LANES;
        let score = product(queries, row, keys, column, sizes.width) * scale;
        let seen = is_seen(query, first_key + column, window, start);
        let score = select(seen, score, f32::new(UNSEEN));
        scores[row * comptime!(sizes.rows + 1) + column] = score;
        most = max(most, score);
    }
    most
}

/// Returns the largest attention score so far of one query, the row `row` of its block: the maximum of `before` and of
/// the scores in `of_lanes`, the largest that each of the row's GPU threads found.
#[cube]
fn largest_of(of_lanes: &Shared<[f32]>, row: usize, before: f32) -> f32 {
    let mut largest = before;
    #[unroll]
    for lane in 0..LANES {
        largest = max(largest, of_lanes[row * LANES + lane]);
    }
    largest
}

/// Replaces this GPU thread's attention scores of the query in the row `row` of its block by unnormalised attention
/// weights, `exp(score - largest)`, and returns their sum. `lane` is the thread's zero-based index among the threads of
/// this row, and `rows` the number of rows of the block.
#[cube]
fn weigh(scores: &mut Shared<[f32]>, row: usize, lane: usize, largest: f32, #[comptime] rows: usize) -> f32 {
    let mut sum = f32::new(0.0);
    #[unroll]
    for at in 0..comptime!(rows / LANES) {
        let at = row * comptime!(rows + 1) + lane + at * LANES;
        let score = scores[at];
        // The comparison keeps a NaN score as NaN, so that it is visible in the output.
        let weight = select(score <= f32::new(UNSEEN), f32::new(0.0), (score - largest).exp());
        scores[at] = weight;
        sum += weight;
    }
    sum
}
