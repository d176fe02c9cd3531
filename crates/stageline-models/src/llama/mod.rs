//! Llama and its relatives: their configuration, their layers, and the names of their tensors.

mod config;
mod layers;
mod names;
mod rope;

pub use config::Config;
pub use layers::{Block, Embeddings, Norm, norm};
pub use names::NAMES;
