//! Checks before the first step whether a training run fits into the memory of its devices and of the host.
//!
//! Input: the job and plan of a run, its pipeline, and the sizes of its batches. Output: the estimate of each worker's
//! memory; or an error that proposes other flags. This folder owns the comparison of estimates with the memory that
//! devices and host have, and the choice of the flags that are proposed. It must not estimate with its own formulas
//! what a pipeline estimates, change settings, or train.
//!
//! - `batches`: the memory that batches take on the host (`BatchMemory`).
//! - `demand`: the memory that a training job needs, and the refusal of a job that does not fit (`Demand`).
//! - `unknown_size`: tells the user which GPUs report no size of their memory. No run is refused for lack of memory on
//!   these GPUs.

pub mod batches;
pub mod demand;
mod unknown_size;
