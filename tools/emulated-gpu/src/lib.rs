//! Emulates a CUDA driver and NCCL on a machine without a GPU, to test how a program orders its transfers and memory
//! accesses.
//!
//! The library is loaded as `libcuda.so` and `libnccl.so`. It answers the calls that burn's CUDA backend makes, as if
//! the machine had N H200 GPUs. The settings come from the environment variable `STAGELINE_EMULATED_GPU`, such as
//! `devices=4,ledger=ledger.json`. At exit, a ledger (the counts of all calls) is written to the file that the settings
//! name.
//!
//! # What it shows
//!
//! - *Deadlocks.* Streams execute in order, events delay them, and a send completes together with its receive when both
//!   are at the heads of their streams. Transfers in an order that hangs on GPUs hang here too. The process then ends
//!   with status 86 and prints the queues.
//! - *Data races.* Vector clocks find kernels, copies and transfers that access the same memory without an order
//!   between them.
//! - *Failures.* The settings can make the driver, the memory or a launch fail, to test how the program reports it.
//! - *Counts.* The ledger has launches, copies, allocations, peak memory, and waits of the host.
//! - *Values*, for small models and with `computes=1`: kernels run on the CPU from their PTX. These are errors that
//!   name the instruction: an access to memory that is not allocated or not aligned, a barrier that some lanes do not
//!   reach, and an unsupported instruction.
//!
//! # What it cannot show
//!
//! - *Times.* A kernel takes no time; the device clock counts 5 microseconds per launch.
//! - *A GPU's last bits.* Tensor cores sum with fewer bits, `approx` functions are less exact, `ftz` flushes denormal
//!   numbers to 0, and NVIDIA's assembler may fuse a product and a sum.
//! - *Races within a launch*, between a kernel's blocks or threads.
//! - *All races between operations.* An operation for which one host thread has waited counts as known to all host
//!   threads. Of a kernel's buffers only the start address is known, so a race is found only if the other access covers
//!   that address.
//! - *Use after free.* Freed memory is forgotten at once, even if work on another stream still reads it.
//! - *Values without `computes=1`.* Kernels do not run, the contents of device memory are not stored, and every copy to
//!   the host reads 2.0 in f32, which is the result that burn expects from its first kernels on a device.
//! - *Other libraries.* Only the functions that burn calls exist, and all-reduce fails.
//!
//! burn stores on disk which kernels were the fastest (autotune). Give an emulated run its own cache
//! (`XDG_CACHE_HOME`), so that a real GPU does not use its results.
//!
//! # Modules
//!
//! - `settings`: the number and memory of the emulated devices, and the failures to inject
//! - `machine`: streams, events and transfers, as a state machine without threads
//! - `clocks`: finds races on device memory; `memory`: the contents of device memory
//! - `ptx`: parses kernels, and finds the buffers that they write; `kernel`: runs kernels on the CPU
//! - `ledger`: counts the program's calls, for the file that is written at exit
//! - `driver`: the process-wide state of the emulated driver, and how host threads wait
//! - `cuda`, `nccl`: the C functions of `libcuda` and `libnccl`

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
