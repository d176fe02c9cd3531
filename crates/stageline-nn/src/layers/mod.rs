//! The layers and functions that models are built from. The layers have burn's parameters. Their backward passes can be
//! split into input and weight gradients, or are one operation in the autodiff graph, except those of
//! `AccumulatedBatchNorm` and `Dropout`, which consist of burn's operations.
//!
//! The layers are `Linear`, `Embedding`, `LayerNorm`, `RmsNorm`, `AccumulatedBatchNorm` and `Dropout`; the functions
//! are `gelu`, `gelu_tanh`, `swiglu`, `join_rotated`, `causal_attention` and `cross_entropy`. Inputs and outputs are
//! burn tensors. A layer computes its operation with a kernel from `kernels`, or with burn's own operations if the
//! backend has no kernel. Layers must not know stages or plans.

mod at_least_f32;
pub mod batch_norm;
pub mod causal_attention;
#[cfg(all(test, feature = "flex"))]
mod close_to_f64;
pub mod cross_entropy;
pub mod dropout;
mod embedding;
mod gelu;
mod layer_norm;
mod linear;
#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
mod normalised;
mod rms_norm;
mod rotary;
mod swiglu;
mod unembedding;

pub use causal_attention::{causal_attention, causal_attention_within};
pub use cross_entropy::{cross_entropy, unmasked};
pub use embedding::Embedding;
pub use gelu::{gelu, gelu_tanh};
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use rms_norm::RmsNorm;
pub use rotary::{RotaryAngles, join_rotated};
pub use swiglu::swiglu;
