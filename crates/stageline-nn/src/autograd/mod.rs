//! Autodiff that a pipeline needs beyond burn's: split backwards and recomputation.
//!
//! Inputs are modules, tensors and burn's graphs; outputs are tensors in these graphs and gradients. This folder must
//! not know stages or plans.
//!
//! - `split_backward`: a layer computes the gradient of its input at once and leaves those of its weights for later
//!   (`Deferred`, `put_off`, `collect`).
//! - `recompute`: marked parts of a model are recomputed in the backward instead of kept (`Recompute`, `block`,
//!   `selective`, `sequence`).
//! - `seed_gradient`: the start of a backward from a given gradient of the output (`root`).

pub mod recompute;
pub mod seed_gradient;
pub mod split_backward;
