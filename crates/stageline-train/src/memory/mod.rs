//! The memory of a training: whether it fits the devices and the host, before the first step.
//!
//! Input: the job and plan of a training, its pipeline, and the sizes of its batches. Output: the estimate of each
//! worker's memory; or an error that proposes other flags. This folder owns the comparison of estimates with the memory
//! that devices and host have, and the choice of the flags that are proposed. It must not estimate by formulas of its
//! own what a pipeline estimates, change settings, or train.
//!
//! - `batches`: the memory that batches take on the host (`BatchMemory`).
//! - `demand`: the demand of a training for memory, and the refusal of one that does not fit (`Demand`).
//! - `unknown_size`: tells the user which GPUs report no size of their memory, so that nothing is refused on them.

pub mod batches;
pub mod demand;
mod unknown_size;
