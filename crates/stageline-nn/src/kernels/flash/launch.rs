//! Launches the attention kernels on a GPU, in blocks of rows that fit into the GPU's shared memory.

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl::calculate_cube_count_elemwise;
use burn_cubecl::cubecl::ir::{AddressType, ElemType, FloatKind, IntKind};
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};

use super::block::Sizes;
use super::{FlashAttention, delta, logarithms_shape, output_shape, scalar, tensor_cores};
use crate::kernels::attention_blocks::{AttentionHeads, scale};

/// Returns the largest head dimension that the FlashAttention kernels support on this GPU; 0 if there is none.
pub fn largest_head(device: &CubeDevice) -> usize {
    (1..=scalar::LARGEST_HEAD).rev().find(|size| fits(device, *size)).unwrap_or(0)
}

/// Whether a GPU can run the FlashAttention kernels for heads of `size` elements.
pub fn fits(device: &CubeDevice, size: usize) -> bool {
    scalar::rows(device, size).is_some()
}

/// Which attention kernels run on a GPU: `Scalar`, which take all dtypes and need no tensor cores, or `TensorCores`,
/// which need NVIDIA's tensor cores.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernels {
    Scalar,
    TensorCores,
}

/// Arguments shared by all kernel launches for one attention input, such as the batch size.
struct Launch {
    batch: usize,
    length: usize,
    sizes: Sizes,
    window: u32,
    scale: f32,
    types: [ElemType; 2],
    kernels: Kernels,
}

impl Launch {
    fn new(input: &CubeTensor, starts: &CubeTensor, heads: AttentionHeads) -> Self {
        let shape = input.shape();
        let (length, width) = (shape[1], shape[2] / heads.columns());
        let element = element_type(input.dtype);
        let (kernels, rows) = match tensor_cores::fit(&input.device, element, width) {
            true => (Kernels::TensorCores, tensor_cores::ROWS),
            false => {
                let rows = scalar::rows(&input.device, width);
                (Kernels::Scalar, rows.expect("the kernels were chosen because they fit the device"))
            }
        };
        Self {
            batch: shape[0],
            length,
            sizes: Sizes { rows, width, query_heads: heads.query, key_heads: heads.key_value },
            window: heads.window.map_or(length, |window| window.min(length)) as u32,
            scale: scale(width) as f32,
            types: [element, element_type(starts.dtype)],
            kernels,
        }
    }

    /// Returns an attention kernel's launch grid, in cubes (thread blocks): blocks of rows x heads x samples.
    fn cubes(&self, heads: usize) -> CubeCount {
        CubeCount::Static(self.length.div_ceil(self.sizes.rows) as u32, heads as u32, self.batch as u32)
    }

    fn units(&self) -> CubeDim {
        let count = match self.kernels {
            Kernels::Scalar => self.sizes.rows * scalar::LANES,
            Kernels::TensorCores => tensor_cores::UNITS,
        };
        CubeDim::new_1d(count as u32)
    }
}

/// Converts the document start positions to i32, unless they are in i32 or i64 already. The GPU kernels are compiled
/// for these two dtypes.
fn positions(starts: CubeTensor) -> CubeTensor {
    let known = matches!(starts.dtype, DType::I32 | DType::I64);
    into_contiguous(if known { starts } else { cast(starts, DType::I32) })
}

fn element_type(dtype: DType) -> ElemType {
    match dtype {
        DType::F16 => ElemType::Float(FloatKind::F16),
        DType::BF16 => ElemType::Float(FloatKind::BF16),
        DType::I64 => ElemType::Int(IntKind::I64),
        DType::I32 => ElemType::Int(IntKind::I32),
        DType::F32 => ElemType::Float(FloatKind::F32),
        other => panic!("attention has no kernel for elements of the type {other:?}"),
    }
}

fn empty(like: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, dtype)
}

fn addresses(tensors: &[&CubeTensor]) -> AddressType {
    tensors.iter().map(|tensor| tensor.required_address_type()).max().unwrap_or_default()
}

impl FlashAttention for CubeBackend {
    fn flash_attention(input: CubeTensor, starts: CubeTensor, heads: AttentionHeads) -> (CubeTensor, CubeTensor) {
        let (input, starts) = (into_contiguous(input), positions(starts));
        let launch = Launch::new(&input, &starts, heads);
        let output = empty(&input, output_shape(&input.shape(), heads), input.dtype);
        let logarithms = empty(&input, logarithms_shape(&input.shape(), heads), DType::F32);
        macro_rules! compute {
            ($kernel:path) => {
                $kernel(
                    &input.client.clone(),
                    launch.cubes(heads.query),
                    launch.units(),
                    addresses(&[&input, &output, &logarithms, &starts]),
                    input.into_tensor_arg(),
                    starts.into_tensor_arg(),
                    output.clone().into_tensor_arg(),
                    logarithms.clone().into_tensor_arg(),
                    launch.window,
                    launch.scale,
                    launch.sizes,
                    launch.types,
                )
            };
        }
        match launch.kernels {
            Kernels::Scalar => compute!(scalar::forward::attention_forward::launch),
            Kernels::TensorCores => compute!(tensor_cores::forward::tensor_core_attention_forward::launch),
        }
        (output, logarithms)
    }

    fn flash_attention_to_input(
        input: CubeTensor,
        starts: CubeTensor,
        output: CubeTensor,
        logarithms: CubeTensor,
        gradient: CubeTensor,
        heads: AttentionHeads,
    ) -> CubeTensor {
        let [input, output, logarithms, gradient] = [input, output, logarithms, gradient].map(into_contiguous);
        let starts = positions(starts);
        let launch = Launch::new(&input, &starts, heads);
        let client = input.client.clone();
        let products = empty(&input, logarithms_shape(&input.shape(), heads), DType::F32);
        let count = products.shape().num_elements();
        let units = CubeDim::new(&client, count);
        delta::attention_delta::launch(
            &client,
            calculate_cube_count_elemwise(&client, count, units),
            units,
            addresses(&[&output, &products]),
            output.into_tensor_arg(),
            gradient.clone().into_tensor_arg(),
            products.clone().into_tensor_arg(),
            launch.sizes,
            launch.types[0],
        );
        let to_input = empty(&input, input.shape(), input.dtype);
        let wide = addresses(&[&input, &gradient, &logarithms, &products, &to_input, &starts]);
        // The kernels for query gradients and for key and value gradients take the same arguments.
        macro_rules! compute {
            ($kernel:path, $heads:expr) => {
                $kernel(
                    &client,
                    launch.cubes($heads),
                    launch.units(),
                    wide,
                    input.clone().into_tensor_arg(),
                    starts.clone().into_tensor_arg(),
                    gradient.clone().into_tensor_arg(),
                    logarithms.clone().into_tensor_arg(),
                    products.clone().into_tensor_arg(),
                    to_input.clone().into_tensor_arg(),
                    launch.window,
                    launch.scale,
                    launch.sizes,
                    launch.types,
                )
            };
        }
        match launch.kernels {
            Kernels::Scalar => {
                compute!(scalar::to_query::attention_to_query::launch, heads.query);
                compute!(scalar::to_key_value::attention_to_key_value::launch, heads.key_value);
            }
            Kernels::TensorCores => {
                compute!(tensor_cores::to_query::tensor_core_attention_to_query::launch, heads.query);
                compute!(tensor_cores::to_key_value::tensor_core_attention_to_key_value::launch, heads.key_value);
            }
        }
        to_input
    }
}
