//! Causal attention for GPUs that never stores the attention score matrix (FlashAttention; Dao et al., 2022,
//! [arXiv:2205.14135](https://arxiv.org/abs/2205.14135)).
//!
//! Input: queries, keys and values of all heads, side by side, and the first key of each query's document. Output:
//! attention's output, and for the backward pass the log-sum-exp of each query's scores, from which the backward pass
//! recomputes the scores block by block. Sums are accumulated in f32; inputs and outputs are f32, bf16 or f16. This
//! folder must not use burn's tensors, only the primitives of the GPU backend.
//!
//! A cube (CubeCL's name for a thread block) computes one block: some consecutive rows (queries, or keys and values) of
//! one head of one sample.
//!
//! - `block`: the sizes that the kernels are compiled for (`Sizes`), and the keys that a query attends to.
//! - `scalar`: kernels for all GPUs and dtypes.
//! - `tensor_cores`: kernels for bf16 and f16 on NVIDIA's tensor cores.
//! - `delta`: the kernel that multiplies each output with its gradient, which all gradients need.
//! - `launch`: chooses and launches the kernels, and checks that a device can run them.

mod block;
mod delta;
mod launch;
mod scalar;
mod tensor_cores;

#[cfg(feature = "fused")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "fused")]
use burn::tensor::DType;
use burn::tensor::Shape;

use crate::kernels::attention_blocks::AttentionHeads;

pub use launch::{fits, largest_head};

/// A backend with FlashAttention kernels, which store no attention scores. In their arguments, `input` is `[batch,
/// length, (query heads + 2 x key-value heads) x size]`. `starts`, `[batch, length]`, contains, for each query, the
/// position where its document begins, counted from 0 in the sample.
#[backend_extension(Cube, Fusion: cfg(feature = "fused"))]
pub trait FlashAttention: Backend {
    /// Computes attention. Returns its output, `[batch, length, query heads x size]`, and the log-sum-exp of each
    /// query's scores, `[batch, query heads, length]` in f32.
    #[fusion(meta = forward_specs)]
    fn flash_attention(
        input: FloatTensor<Self>,
        starts: IntTensor<Self>,
        heads: AttentionHeads,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the gradient of the loss with respect to `input`. `output` is attention's output, and `gradient` the
    /// gradient with respect to it, both `[batch, length, query heads x size]`. `logarithms` has the log-sum-exp of
    /// each query's scores, as `flash_attention` returned it.
    #[fusion(dtype = input, shape = input)]
    fn flash_attention_to_input(
        input: FloatTensor<Self>,
        starts: IntTensor<Self>,
        output: FloatTensor<Self>,
        logarithms: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        heads: AttentionHeads,
    ) -> FloatTensor<Self>;
}

/// Returns the shape of attention's output for an input `[batch, length, (query heads + 2 x key-value heads) x size]`.
fn output_shape(input: &Shape, heads: AttentionHeads) -> Shape {
    Shape::new([input[0], input[1], input[2] / heads.columns() * heads.query])
}

/// Returns the shape of the log-sum-exp tensor, which has one value per query of each attention head.
fn logarithms_shape(input: &Shape, heads: AttentionHeads) -> Shape {
    Shape::new([input[0], heads.query, input[1]])
}

/// Returns the shapes and dtypes of the two outputs of attention's forward pass on a GPU. burn's operator fusion needs
/// them before the kernel runs.
#[cfg(feature = "fused")]
fn forward_specs(input: &TensorSpec, _: &TensorSpec, heads: &AttentionHeads) -> (TensorSpec, TensorSpec) {
    let output = TensorSpec::new(output_shape(&input.shape, *heads), input.dtype);
    (output, TensorSpec::new(logarithms_shape(&input.shape, *heads), DType::F32))
}
