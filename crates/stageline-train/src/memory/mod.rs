//! Checks before the first step whether a training run fits into the memory of its devices and of the host.
//!
//! Input: the job and plan of a run, its pipeline, and the sizes of its batches. Output: the estimate of each worker's
//! memory; or an error that proposes other flags. The code here compares estimates with the memory of devices and host,
//! and chooses the flags that an error proposes. It must not train or change settings. It must not estimate with
//! formulas of its own what the pipeline already estimates.
//!
//! - `batches`: the memory that batches take on the host (`BatchMemory`).
//! - `check`: the memory that a training job needs, and the refusal of a job that does not fit (`Demand`).
//! - `unknown_size`: tells the user which GPUs report no size of their memory. No run is refused for lack of memory on
//!   these GPUs.

pub mod batches;
pub mod check;
mod unknown_size;
