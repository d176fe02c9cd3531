//! The kernels of attention for all GPUs and all types of elements. They compute everything in f32, and round only the
//! results to the type of the inputs.
//!
//! - `tile`: the rows of a head in shared memory, and what the kernels compute from them.
//! - `forward`: the kernel of attention.
//! - `to_query`: the kernel of the gradient of the queries.
//! - `to_key_value`: the kernel of the gradients of the keys and values, which sums over the query heads that share
//!   them.

pub(super) mod forward;
mod tile;
pub(super) mod to_key_value;
pub(super) mod to_query;

use burn_cubecl::CubeDevice;

pub(super) use tile::LANES;

/// The numbers of rows (queries or keys) that a thread block of attention can have on a GPU, the best number first. A
/// block with more rows loads keys and values, or queries, from memory less often.
const ROWS: [usize; 3] = [32, 16, 8];

/// The largest size of an attention head, in elements, that the GPU kernels support. The sums of one row of a larger
/// head would not fit into the registers.
pub(super) const LARGEST_HEAD: usize = 256;

/// Returns the largest number of rows (queries or keys) that a thread block of attention can have on a GPU, for heads
/// of `size` elements. The GPU's shared memory and its number of threads limit the block. Returns `None` if no block
/// fits or the head is too large.
pub(super) fn rows(device: &CubeDevice, size: usize) -> Option<usize> {
    let client = device.client();
    let hardware = &client.properties().hardware;
    let bytes = |rows: usize| size_of::<f32>() * (3 * rows * (size + 1) + rows * (rows + 1 + LANES));
    let fits = |rows: &usize| {
        bytes(*rows) <= hardware.max_shared_memory_size && rows * LANES <= hardware.max_units_per_cube as usize
    };
    ROWS.into_iter().find(fits).filter(|_| size <= LARGEST_HEAD)
}
