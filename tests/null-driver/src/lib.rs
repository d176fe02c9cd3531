//! A CUDA driver and an NCCL that compute nothing: what a program asks of its GPUs, on a machine that has none.
//!
//! Loaded as `libcuda.so` and `libnccl.so`, they take the calls that burn's CUDA backend makes, as N devices with the figures of
//! an H200. Kernels are not run, and memory holds nothing: whatever is read back is 2.0 in f32, which is also what the first
//! kernels of a device are to give. But streams do their work in order, events hold them up, and a send and a receive meet
//! at the heads of their streams, so what hangs on GPUs for the order of its transfers hangs here, and is told; so are kernels and
//! transfers that use the same memory, with nothing that says which comes first. At the end all that was asked is written down.
//!
//! Its settings, and the file for that, come from the environment. burn keeps on disk which kernels were fastest: give it a cache
//! of its own (`XDG_CACHE_HOME`), or what it finds here will hold for the next real GPU.
//!
//! - `settings`: what the environment says of the devices, and of what is to fail
//! - `machine`: streams, events and communicators; pure, and tested by itself
//! - `clocks`: which uses of memory nothing orders; `ptx`: which of its buffers a kernel writes
//! - `ledger`: what was asked
//! - `driver`: the one machine of the process, and how hosts wait for it
//! - `cuda`, `nccl`: the functions, as the libraries have them

mod clocks;
mod cuda;
mod driver;
mod ledger;
mod machine;
mod nccl;
mod ptx;
mod settings;
