//! A CUDA driver and an NCCL on a machine that has no GPU: what a program asks of its GPUs, and what comes of it.
//!
//! Loaded as `libcuda.so` and `libnccl.so`, they take the calls that burn's CUDA backend makes, as N devices with the figures of
//! an H200. Streams do their work in order, events hold them up, and a send and a receive meet at the heads of their streams, so
//! what hangs on GPUs for the order of its transfers hangs here, and is told; so are kernels and transfers that use the same memory,
//! with nothing that says which comes first. At the end all that was asked is written down.
//!
//! With `computes=1` kernels are run on the CPU as their PTX says, for small models. Where a GPU computes otherwise: sums in tensor cores
//! have fewer bits there, `approx` functions are less exact, `ftz` takes what is no normal number for 0, and NVIDIA's assembler may join a
//! product and a sum. Memory that was never written holds no numbers. Memory that is not a kernel's, addresses that are not
//! aligned, lanes that are waited for and are elsewhere, and instructions that are not known are errors that name the instruction;
//! races within a launch are not looked at. Without it kernels are not run, and memory
//! holds nothing: whatever is read back is 2.0 in f32, which is also what the first kernels of a device are to give.
//!
//! Its settings, and the file for what was asked, come from the environment. burn keeps on disk which kernels were fastest: give it a
//! cache of its own (`XDG_CACHE_HOME`), or what it finds here will hold for the next real GPU.
//!
//! - `settings`: what the environment says of the devices, and of what is to fail
//! - `machine`: streams, events and communicators; pure, and tested by itself
//! - `clocks`: which uses of memory nothing orders; `memory`: what is there
//! - `ptx`: kernels as text, and which of their buffers they write; `kernel`: kernels, as they are run
//! - `ledger`: what was asked
//! - `driver`: the one machine of the process, and how hosts wait for it
//! - `cuda`, `nccl`: the functions, as the libraries have them

mod clocks;
mod cuda;
mod driver;
mod kernel;
mod ledger;
mod machine;
mod memory;
mod nccl;
mod ptx;
mod settings;
