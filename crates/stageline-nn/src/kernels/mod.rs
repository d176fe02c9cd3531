//! Kernels: operations of layers that a backend computes in one call, with their gradients. The module is public for
//! the few kernels that a pipeline or an optimizer calls itself, and for the kernels on devices of remote hosts
//! (`remote`).
//!
//! The operations are GELU, SwiGLU, layer and RMS normalisation, rotary embeddings, causal attention, cross-entropy,
//! linear products, sums of squares and AdamW's step. Inputs are primitive tensors of one backend, not tracked by
//! autodiff, and outputs are new tensors, or take the memory of an input that the caller gives away. AdamW's step takes
//! burn's tensors; on the CPU it updates a parameter and its moments in place if nothing else uses their memory. A
//! kernel keeps none of its inputs and outputs between calls, and must not know stages or plans.
//!
//! - `interface`: the trait of a backend with kernels (`Kernels`), and the dispatch of an operation to a tensor's
//!   backend.
//! - `declared`: operations that a layer declares before a forward pass (`Operation`).
//! - `attention_blocks`: the heads of attention, the scale of its scores, and the blocks of queries that it is divided
//!   into.
//! - `attention_mask`: masks of the keys that a query must not attend to.
//! - `rotation`: the rotation of queries and keys by their positions, on every backend.
//! - `masked_targets`: targets that the cross-entropy ignores.
//! - `variants`: the variants of operations that share a kernel.
//! - `products`: the products of a linear layer and the gradient of an embedding, on every backend (`Products`).
//! - `sum_of_squares`: the sum of squares of a tensor's elements, on every backend.
//! - `adamw`: an AdamW step, on every backend.
//! - `cpu`: kernels for this host's CPU cores.
//! - `fused`: the same operations, composed of burn's in an order that burn fuses for GPUs.
//! - `fusion`: keeps matrix products out of burn's fusion on GPUs.
//! - `flash`: FlashAttention as this crate's own GPU code, which stores no attention scores.
//! - `gpu`: the operations of `fused` as the kernels of GPUs (CUDA, ROCm, Vulkan, Metal and WebGPU).
//! - `remote`: the kernels on devices of remote hosts, requested over burn's remote protocol.

mod adamw;
pub(crate) mod attention_blocks;
pub(crate) mod attention_mask;
#[cfg(feature = "flex")]
mod cpu;
pub(crate) mod declared;
#[cfg(feature = "gpu")]
mod flash;
#[cfg(any(feature = "gpu", all(test, feature = "flex")))]
mod fused;
#[cfg(feature = "fused")]
mod fusion;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
mod interface;
pub(crate) mod masked_targets;
pub(crate) mod products;
#[cfg(feature = "remote")]
pub mod remote;
pub(crate) mod rotation;
mod sum_of_squares;
pub(crate) mod variants;

pub use adamw::{AdamWStep, AdamWUpdate};
#[cfg(feature = "flex")]
pub use cpu::{
    huge_pages::use_huge_pages,
    memory::{prepare_process, prepare_thread},
};
#[cfg(feature = "fused")]
pub use fusion::keep_products_apart;
#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
pub(crate) use interface::*;
pub use sum_of_squares::sum_of_squares;

/// Does nothing, because a build without CPU kernels has no allocator settings to prepare.
#[cfg(not(feature = "flex"))]
pub fn prepare_process() {}

/// Does nothing, because a build without CPU kernels has no buffers to prepare.
#[cfg(not(feature = "flex"))]
pub fn prepare_thread() {}

/// Does nothing, because a build without CPU kernels has no matrices in this process's memory.
#[cfg(not(feature = "flex"))]
pub fn use_huge_pages() {}
