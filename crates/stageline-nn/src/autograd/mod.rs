//! Autodiff features that a pipeline needs and burn lacks: split backward passes (input gradients apart from weight
//! gradients) and activation recomputation. The module is public because the function names [`collect`], [`gather`] and
//! [`root`] are clear only after the module's name, as in `autograd::collect`.
//!
//! Inputs are modules, tensors and burn's graphs; outputs are tensors in these graphs and gradients. This folder must
//! not know stages or plans.
//!
//! - `weight_gradients`: a layer's weight gradients outside burn's graph. They are added to the stage's gradient sum
//!   immediately (`add_at_once`) or deferred (`Deferred`, `put_off`, `collect`).
//! - `uses`: finds the parameters that a forward pass uses exactly once, whose gradients can be added to the stage's
//!   gradient sum immediately (`finding_single_uses`).
//! - `sum`: the running sum of the gradients of a stage's parameters (`Sum`).
//! - `recompute`: activation recomputation (activation checkpointing) of the submodules that a model marks
//!   (`Recompute`, `block`, `selective`, `sequence`).
//! - `seed_gradient`: starts a backward pass from a given gradient of the output (`root`).

pub(crate) mod recompute;
pub(crate) mod seed_gradient;
pub(crate) mod sum;
pub(crate) mod uses;
pub(crate) mod weight_gradients;

pub use recompute::{Parts, SequenceParts, gather, recomputed};
pub use seed_gradient::root;
pub use uses::finding_single_uses;
pub use weight_gradients::{AtOnce, add_at_once, collect};
