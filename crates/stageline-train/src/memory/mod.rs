//! Checks before the first step whether a training run fits into the memory of its devices and of the host.
//!
//! Input: a run's job, plan, pipeline and batch sizes. Output: the estimate of each worker's memory; or an error that
//! proposes other flags. The code here compares estimates with the memory of the devices and the host, and chooses the
//! flags that an error proposes. It must not train or change settings. It must not have formulas of its own for memory
//! that the pipeline already estimates.
//!
//! - `available`: the memory that the devices and the host have.
//! - `batches`: the host memory that batches take (`BatchMemory`).
//! - `check`: estimates the memory that a training job needs, and rejects a job that does not fit (`Demand`).
//! - `parameters`: rejects a model whose parameters alone do not fit.
//! - `unknown_size`: tells the user which GPUs do not report their memory size. On these GPUs, no run is rejected for
//!   lack of memory.

mod available;
pub mod batches;
pub mod check;
pub mod parameters;
mod unknown_size;
