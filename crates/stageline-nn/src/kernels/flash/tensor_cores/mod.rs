//! The kernels of attention for tensor cores, the units of NVIDIA's GPUs that multiply small matrices in half
//! precision and add in f32. Queries, keys, values and their gradients are multiplied as they are, in bf16 or f16.
//! Weights of attention and gradients of scores are rounded to this type before they are multiplied. The factor of the
//! scores is applied after that, because it would make gradients smaller that are small in f16 already.
//!
//! - `fragments`: the parts of matrices that the threads of a plane (CubeCL's name for a warp) have in registers.
//! - `forward`: the kernel of attention.
//! - `to_query`: the kernel of the gradient of the queries.
//! - `to_key_value`: the kernel of the gradients of the keys and values.

mod fragments;

pub(super) mod forward;
pub(super) mod to_key_value;
pub(super) mod to_query;

use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::ir::features::MmaConfig;
use burn_cubecl::cubecl::ir::{ElemType, FloatKind};

use fragments::{MMA, shared_memory};
pub(super) use fragments::{ROWS, UNITS};

/// The largest size of an attention head, in elements, that the kernels for tensor cores support. The sums of a larger
/// head would not fit into the registers.
const LARGEST_HEAD: usize = 128;

/// Whether these kernels compute attention on a GPU, for heads of `size` elements of the type `element`. The size must
/// be a multiple of 16 and at most 128. The GPU must multiply matrices of the size that NVIDIA's GPUs multiply since
/// compute capability 8.0. It must also have planes of 32 threads, and enough shared memory for such heads.
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
