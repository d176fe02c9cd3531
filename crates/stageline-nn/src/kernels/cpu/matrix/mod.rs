//! f32 matrices and their products.
//!
//! - `view`: views of f32 slices as matrices, which may be parts of larger matrices (`Matrix`, `MatrixMut`).
//! - `multiply`: products of such matrices.
//! - `packed`: products of several matrices with the same right matrix (`Packed`).
//! - `addends`: the existing output or a bias that is added to a product.
//! - `tiled`: products in register tiles, on x86-64 processors with AVX2 or AVX-512.
//! - `cores`: whether a product is computed on one thread or in parallel.

mod addends;
mod cores;
mod multiply;
mod packed;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod view;

pub use multiply::allocate_buffers;
pub use packed::Packed;
pub use view::{Matrix, MatrixMut};
