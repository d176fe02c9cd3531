//! Parameters of a module: visited under their paths, read, copied, and found again where a module uses one twice.

pub(crate) mod any_tensor;
pub(crate) mod fork;
pub(crate) mod named;
pub(crate) mod read_many;
pub(crate) mod shared;
pub(crate) mod visit;
