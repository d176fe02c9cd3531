//! The parameters of a module: finds them by path, reads and writes their values, and keeps each tied parameter a
//! single tensor.
//!
//! Input: burn modules. Output: values on the host, descriptions of parameters, or the module with other values. This
//! folder must not train a module, and must not know the stage that a module belongs to.
//!
//! - `visit`: describes, reads, writes and changes the tensors of a module (`describe`, `read`, `write`,
//!   `visit_floats`, `map_floats`).
//! - `named`: trained parameters and their gradients as numbers on the host, by path (`Named`).
//! - `seed`: initialises a module from a seed, so that parameters do not depend on the partition (`seeded`).
//! - `shared`: keeps a parameter that a module uses several times one tensor (`unify`).
//! - `fork`: moves a module to another device without dequantizing its parameters.
//! - `hollow`: a module's constants without the memory of its tensors.
//! - `read_many`: reads several small tensors from a device at once.
//! - `any_tensor`: a float tensor without its rank in the type (`AnyTensor`).

pub mod any_tensor;
pub mod fork;
pub mod hollow;
pub mod named;
pub mod read_many;
pub mod seed;
pub mod shared;
pub mod visit;
