//! Devices: opening them by name, locating them, and preparing the libraries that move tensors between them.
//!
//! Input: names such as `cuda:0`, `vulkan:1` or `iroh:<id>/0`. Output: burn's devices, or an error for every device
//! that cannot be used; and facts about devices, such as whether two of them share a memory. This folder owns parsing
//! device names, test kernels, loading the CUDA driver's and NCCL's libraries, and the network to other hosts. It must
//! not know plans or steps: `transfer` moves the tensors of a step, along the routes that this folder opens.
//!
//! In messages, a device has the name under which it was opened (`shown`). Only the crate's folder `memory` says "the
//! host" for this host's CPU. The names of replicas and stages in messages come from `model`.
//!
//! - `name`: names on a command line (`DeviceName`), and the devices that they open.
//! - `error`: the errors of opening devices (`DeviceError`, `DeviceErrors`), with the advice to the user.
//! - `location`: tests whether a device is this host's CPU (`is_host`), a GPU of this host (`is_gpu`, `is_cuda`), or a
//!   device of another host (`is_remote`), and whether two devices share a memory (`share_memory`); numbers the
//!   communication streams of GPUs.
//! - `cuda_driver`: the check of the CUDA version that the NVIDIA driver supports.
//! - `gpu_api`: the interfaces through which programs use GPUs (`GpuApi`: CUDA, ROCm, WebGPU, Vulkan, Metal) with the
//!   drivers and packages that they need.
//! - `gpu_search`: the search for the GPUs of an interface: its libraries, and the errors (`GpuSearchError`).
//! - `gpu`: the GPUs that are present (`Gpu`), listed for each interface.
//! - `kernel_cache`: makes cubecl keep compiled and tuned kernels in the user's cache folder.
//! - `library`: loads the library of such an interface on trial, to tell a missing library from a broken one
//!   (`Unloadable`).
//! - `memory`: the size of a GPU's memory, and what this program has reserved and in use there (`DeviceMemory`).
//! - `test_kernels`: runs test kernels on a GPU when it is opened, and finds the root cause in the text of a panic.
//! - `fusion`: burn's settings for the fusion of operations on GPUs.
//! - `nccl`: loads NCCL, which moves tensors directly between the GPUs of this host (`BetweenGpus`). If NCCL has a file
//!   name that burn does not look for, it writes a small ELF library (header, segments, symbols) that has such a name
//!   and depends on NCCL.
//! - `opened`: the names under which devices were opened, for messages.
//! - `speed`: the relative speeds of devices, measured with a matrix product (`device_speeds`).
//! - `supported`: the element types that a device computes in, and whether its kernels are known.
//! - `transfer_path`: the path of tensors between two devices (`Site`), which is NCCL, the host's memory or the network
//!   (`TransferPath`); its text for each kind of tensors (`Moved`), and its log at the start.
//! - `remote`: devices of other hosts: names, tokens, connections to one device (sessions), routes of tensors, liveness
//!   checks, lost hosts with the stages on them (`LostHost`), and the server, with its sockets, addresses and limits.

#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // without the feature, only its tests use this module
mod cuda_driver;
pub(crate) mod error;
#[cfg(any(feature = "fused", test))]
mod fusion;
pub(crate) mod gpu;
pub(crate) mod gpu_api;
pub(crate) mod gpu_search;
#[cfg(feature = "gpu")]
mod kernel_cache;
#[cfg(any(feature = "gpu", test))]
mod library;
pub(crate) mod location;
pub(crate) mod memory;
pub(crate) mod name;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // without the feature, only its tests use this module
pub(crate) mod nccl;
pub(crate) mod opened;
pub mod remote;
pub(crate) mod speed;
pub(crate) mod supported;
mod test_kernels;
pub(crate) mod transfer_path;
