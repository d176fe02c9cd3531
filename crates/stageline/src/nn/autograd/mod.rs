//! Autodiff that a pipeline needs beyond burn's: backwards in two halves, and recomputation.
//!
//! Each layer's backward can be split into the gradient of its input and those of its weights, and activations can be recomputed
//! instead of kept. Knows no stages.

pub(crate) mod engine;
pub(crate) mod recompute;
pub(crate) mod seed_gradient;
pub(crate) mod split_backward;
