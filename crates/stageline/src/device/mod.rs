//! Devices: their names, where they are, and those of other hosts.
//!
//! Takes names such as `cuda:0` or `iroh:<id>/0` and returns burn's devices, or an error for every device that cannot be used. Also
//! answers where a device is, and how tensors travel between two of them. Knows neither stages nor plans.

#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // only tests use it
mod cuda_driver;
#[cfg(any(feature = "cuda", test))]
mod cuda_fusion;
pub(crate) mod location;
pub(crate) mod name;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // only tests use it
pub(crate) mod nccl;
pub mod remote;
