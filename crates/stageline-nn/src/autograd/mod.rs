//! Autodiff that a pipeline needs beyond burn's: split backward passes and recomputation. The module is public because
//! the function names [`collect`], [`gather`] and [`root`] are clear only after the module's name, as in
//! `autograd::collect`.
//!
//! Inputs are modules, tensors and burn's graphs; outputs are tensors in these graphs and gradients. This folder must
//! not know stages or plans.
//!
//! - `weight_gradients`: a layer's weight gradients outside burn's graph. They are added to the stage's sum immediately
//!   (`add_at_once`) or deferred (`Deferred`, `put_off`, `collect`).
//! - `uses`: finds the parameters that a forward pass uses exactly once, whose gradients can be added to the stage's
//!   sum immediately (`finding_single_uses`).
//! - `sum`: the running sum of the gradients of a stage's parameters (`Sum`).
//! - `recompute`: recomputes the activations of marked parts of a model in the backward pass, instead of keeping them
//!   (`Recompute`, `block`, `selective`, `sequence`).
//! - `seed_gradient`: the start of a backward pass from a given gradient of the output (`root`).

pub(crate) mod recompute;
pub(crate) mod seed_gradient;
pub(crate) mod sum;
pub(crate) mod uses;
pub(crate) mod weight_gradients;

pub use recompute::{Parts, SequenceParts, gather, recomputed};
pub use seed_gradient::root;
pub use uses::finding_single_uses;
pub use weight_gradients::{AtOnce, add_at_once, collect};
