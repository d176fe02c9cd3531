//! The attention kernels for all GPUs and all dtypes. They compute everything in f32, and round only the results to the
//! inputs' dtype.
//!
//! - `tile`: the rows of a head in shared memory, and functions that compute from them.
//! - `forward`: the kernel of the forward pass.
//! - `to_query`: the kernel of the query gradients.
//! - `to_key_value`: the kernel of the key and value gradients, which sums over the query heads that share them.

pub(super) mod forward;
mod tile;
pub(super) mod to_key_value;
pub(super) mod to_query;

use burn_cubecl::CubeDevice;

pub(super) use tile::LANES;

/// Numbers of rows (queries or keys) that a thread block of attention can have on a GPU, largest first. A block with
/// more rows reloads keys and values, or queries, from memory less often.
const ROWS: [usize; 3] = [32, 16, 8];

/// Largest head dimension that these kernels support. The sums of one row of a larger head would not fit into a
/// thread's registers.
pub(super) const LARGEST_HEAD: usize = 256;

/// Returns the largest number of rows (queries or keys) per thread block that this GPU's shared memory and thread limit
/// allow, for attention heads of `size` elements. Returns `None` if no block fits or the head is too large.
pub(super) fn rows(device: &CubeDevice, size: usize) -> Option<usize> {
    let client = device.client();
    let hardware = &client.properties().hardware;
    let bytes = |rows: usize| size_of::<f32>() * (3 * rows * (size + 1) + rows * (rows + 1 + LANES));
    let fits = |rows: &usize| {
        bytes(*rows) <= hardware.max_shared_memory_size && rows * LANES <= hardware.max_units_per_cube as usize
    };
    ROWS.into_iter().find(fits).filter(|_| size <= LARGEST_HEAD)
}
