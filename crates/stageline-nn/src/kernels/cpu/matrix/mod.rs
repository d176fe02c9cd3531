//! Matrices of f32 numbers and their products.
//!
//! - `view`: views of numbers as matrices, which may be parts of larger matrices (`Matrix`, `MatrixMut`).
//! - `multiply`: products of such matrices.
//! - `addends`: the numbers that are added to a product.
//! - `tiled`: products in tiles, on x86-64 processors with AVX2 or AVX-512.
//! - `cores`: the cores that compute a product.

mod addends;
mod cores;
mod multiply;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod view;

pub use multiply::allocate_buffers;
pub use view::{Matrix, MatrixMut};
