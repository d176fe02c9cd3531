//! Matrices of f32 numbers and their products.
//!
//! - `view`: views of numbers as matrices, which may be parts of larger matrices (`Matrix`, `MatrixMut`).
//! - `multiply`: products of such matrices.

mod multiply;
mod view;

pub use view::{Matrix, MatrixMut};
