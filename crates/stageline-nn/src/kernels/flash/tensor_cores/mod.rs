//! The attention kernels for NVIDIA's tensor cores, which multiply small matrices in half precision and accumulate in
//! f32. Queries, keys, values and output gradients are multiplied as they are, in bf16 or f16. Attention weights and
//! score gradients are rounded to this dtype before they are multiplied. Score gradients are multiplied by the
//! attention scale only afterwards, because it would shrink gradients that are already small in f16.
//!
//! - `fragments`: the parts of matrices that the threads of a plane (CubeCL's name for a warp) hold in registers.
//! - `forward`: the kernel of the forward pass.
//! - `to_query`: the kernel of the query gradients.
//! - `to_key_value`: the kernel of the key and value gradients.

mod fragments;

pub(super) mod forward;
pub(super) mod to_key_value;
pub(super) mod to_query;

use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::ir::features::MmaConfig;
use burn_cubecl::cubecl::ir::{ElemType, FloatKind};

use fragments::{MMA, shared_memory};
pub(super) use fragments::{ROWS, UNITS};

/// Largest head dimension that these kernels support. The sums of a larger head would not fit into a thread's
/// registers.
const LARGEST_HEAD: usize = 128;

/// Whether these kernels can compute attention on a GPU, for heads of `size` elements of the dtype `element`. The size
/// must be a multiple of 16 and at most 128. The GPU must support matrix products of 16 x 8 x 16, as NVIDIA's GPUs do
/// from compute capability 8.0 on, and the loads of their fragments (`ldmatrix`). It must also have planes (warps) of
/// 32 threads, and enough shared memory for such heads.
pub(super) fn fit(device: &CubeDevice, element: ElemType, size: usize) -> bool {
    let client = device.client();
    let (hardware, matrices) = (&client.properties().hardware, &client.properties().features.matmul);
    let [m, n, k] = MMA.map(|side| side as u32);
    let product = MmaConfig { a_type: element, b_type: element, cd_type: ElemType::Float(FloatKind::F32), m, n, k };
    size.is_multiple_of(16)
        && size <= LARGEST_HEAD
        && matrices.mma.contains(&product)
        && matrices.ldmatrix.contains(&element)
        && [hardware.plane_size_min, hardware.plane_size_max] == [32, 32]
        && hardware.max_shared_memory_size >= shared_memory(size)
}
