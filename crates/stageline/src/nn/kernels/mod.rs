//! Kernels: operations of layers that a backend computes in one piece, with their gradients.
//!
//! - `interface`: what a backend with such kernels implements, and the choice of the backend for a tensor.
//! - `products`: the products of a linear layer, on every backend.
//! - `cpu`: kernels for the cores of this host.
//! - `fused`: the same operations composed so that burn fuses them for GPUs; `gpu` uses them on NVIDIA devices.
//!
//! Takes tensors of burn's backends without their graphs. Allocates outputs and keeps nothing.

#[cfg(feature = "flex")]
pub(crate) mod cpu;
#[cfg(any(feature = "cuda", all(test, feature = "flex")))]
mod fused;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
mod interface;
pub(crate) mod products;

#[cfg(feature = "flex")]
pub(crate) use cpu::products::allocate_packing_buffer;
#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
pub(crate) use interface::*;

/// Does nothing: without CPU kernels no product packs its operands.
#[cfg(not(feature = "flex"))]
pub(crate) fn allocate_packing_buffer() {}
