//! Autodiff that a pipeline needs beyond burn's: split backwards and recomputation. The module is public because the
//! function names [`collect`], [`gather`] and [`root`] are clear only after the module's name, as in
//! `autograd::collect`.
//!
//! Inputs are modules, tensors and burn's graphs; outputs are tensors in these graphs and gradients. This folder must
//! not know stages or plans.
//!
//! - `split_backward`: a layer computes the gradient of its input at once and leaves those of its weights for later
//!   (`Deferred`, `put_off`, `collect`).
//! - `recompute`: marked parts of a model are recomputed in the backward instead of kept (`Recompute`, `block`,
//!   `selective`, `sequence`).
//! - `seed_gradient`: the start of a backward from a given gradient of the output (`root`).

pub(crate) mod recompute;
pub(crate) mod seed_gradient;
pub(crate) mod split_backward;

pub use recompute::{Parts, SequenceParts, gather, recomputed};
pub use seed_gradient::root;
pub use split_backward::collect;
