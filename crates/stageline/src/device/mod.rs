//! Devices: opening them by name, locating them, and preparing the libraries that move tensors between them.
//!
//! Input: names such as `cuda:0`, `vulkan:1` or `iroh:<id>/0`. Output: burn's devices, an error for every device that
//! cannot be used, and facts about devices, such as whether two of them share memory. This folder owns parsing device
//! names, test kernels, loading the CUDA driver's and NCCL's libraries, and the network to other hosts. It must not
//! know plans or steps: `transfer` moves a step's tensors, along the routes that this folder opens.
//!
//! In messages, a device has the name by which it was opened (`shown`). The folder `memory` is the only one whose
//! messages call this host's CPU "the host". The names of replicas and stages in messages come from `model`.
//!
//! - `name`: names on a command line (`DeviceName`), and the devices that they open.
//! - `error`: the errors of opening devices (`DeviceError`, `DeviceErrors`), with the advice to the user.
//! - `location`: tests whether a device is this host's CPU (`is_host`), a GPU of this host (`is_gpu`, `is_cuda`), or a
//!   device of another host (`is_remote`), and whether two devices share a memory (`share_memory`); numbers the
//!   communication streams of GPUs.
//! - `cuda_driver`: the check of the CUDA version that the NVIDIA driver supports.
//! - `gpu_api`: the GPU APIs (`GpuApi`: CUDA, ROCm, WebGPU, Vulkan, Metal), and the drivers and packages that they
//!   need.
//! - `gpu_search`: the search for the GPUs of one GPU API, its libraries, and its errors (`GpuSearchError`).
//! - `gpu`: this host's GPUs (`Gpu`), listed for each GPU API.
//! - `kernel_cache`: makes cubecl keep compiled and tuned kernels in the user's cache folder.
//! - `library`: test-loads a GPU API's library, to tell a missing library from a broken one (`Unloadable`).
//! - `memory`: a GPU's memory size, and the bytes that this program has reserved and uses there (`DeviceMemory`).
//! - `test_kernels`: runs test kernels on a GPU when it is opened, and extracts the root cause from a panic's message.
//! - `fusion`: configures burn's operator fusion on GPUs.
//! - `nccl`: loads NCCL, which transfers tensors directly between this host's GPUs (`BetweenGpus`). If NCCL has a file
//!   name that burn does not look for, this module writes a small ELF library that depends on NCCL and has such a name.
//! - `opened`: the names of opened devices, for messages.
//! - `speed`: the relative speeds of devices, measured with matrix products (`device_speeds`).
//! - `supported`: the dtypes that a device computes in, and whether its kernels are known.
//! - `transfer_path`: how tensors get from one device to another: by NCCL, through host memory or over the network
//!   (`TransferPath`). This depends on the devices' locations (`Site`) and the kind of tensors (`Moved`), and is logged
//!   when a pipeline starts.
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
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // without the feature `cuda`, only tests use this module
pub(crate) mod nccl;
pub(crate) mod opened;
pub mod remote;
pub(crate) mod speed;
pub(crate) mod supported;
mod test_kernels;
pub(crate) mod transfer_path;
