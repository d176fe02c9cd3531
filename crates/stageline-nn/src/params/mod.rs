//! The parameters of a module: finds them by path, reads and writes their values, and keeps tied parameters one tensor.
//!
//! Inputs are burn modules; outputs are values on the host, descriptions, or the module with other values. Nothing here
//! trains a module or knows its stage.
//!
//! - `visit`: describes, reads and writes all tensors of a module.
//! - `named`: trained parameters and their gradients as numbers on the host, by path.
//! - `shared`: keeps a parameter that a module uses several times one tensor.
//! - `fork`: moves a module to another device without dequantizing it.
//! - `read_many`: reads several small tensors from a device at once.
//! - `any_tensor`: a tensor without its rank in the type.

pub mod any_tensor;
pub mod fork;
pub mod named;
pub mod read_many;
pub mod seed;
pub mod shared;
pub mod visit;
