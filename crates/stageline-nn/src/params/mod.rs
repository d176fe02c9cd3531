//! The parameters of a module: finds them by path, reads and writes their values, and keeps each tied parameter a
//! single tensor. The module is public because function names such as [`read`], [`write()`] and [`unify`] are clear
//! only after the module's name, as in `params::read`.
//!
//! Input: burn modules. Output: values in host memory, descriptions of parameters, or the module with other values.
//! This folder must not train a module, and must not know the stage that a module belongs to.
//!
//! - `visit`: describes, reads, writes and changes the tensors of a module (`describe`, `read`, `write`,
//!   `visit_floats`, `map_floats`).
//! - `named`: trainable parameters by path, with their gradients in host memory (`Named`).
//! - `seed`: initialises a module from a seed, so that parameters do not depend on the partition (`seeded`).
//! - `sending`: sends tensors to a device, and limits the bytes that are in flight (`Sending`).
//! - `shared`: keeps a single tensor for a parameter that a module uses several times (`unify`).
//! - `to_device`: moves a module to another device without dequantizing its parameters.
//! - `without_memory`: copies a module with its constants, but without the memory of its tensors.
//! - `read_many`: reads several small tensors from a device in one transfer.
//! - `widest_float`: the widest float dtype of a device, for sums of many values.
//! - `any_tensor`: a float tensor without its rank in the type (`AnyTensor`).

pub(crate) mod any_tensor;
mod named;
mod read_many;
pub(crate) mod seed;
mod sending;
pub(crate) mod shared;
pub(crate) mod to_device;
pub(crate) mod visit;
mod widest_float;
mod without_memory;

pub use any_tensor::AnyTensor;
pub use named::{Named, named_gradients, values_by_id, zero_gradients};
pub use read_many::read_many;
pub use seed::{materialize, seeded_on, unseeded};
pub use sending::is_remote;
pub use shared::unify;
pub use to_device::{fork, is_quantized};
pub use visit::{
    Description, FloatParameter, describe, dtype_of, is_trained, map_floats, read, read_each, visit_floats, with_value,
    write,
};
pub use widest_float::widest_float;
pub use without_memory::hollow;
