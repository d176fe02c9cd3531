//! Layers and functions whose backward splits, with the parameters of burn's layers.

pub(crate) mod batch_norm;
pub(crate) mod causal_attention;
pub(crate) mod cross_entropy;
pub(crate) mod dropout;
mod embedding;
mod gelu;
mod layer_norm;
mod linear;

pub use causal_attention::causal_attention;
pub use cross_entropy::cross_entropy;
pub use embedding::Embedding;
pub use gelu::gelu;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
