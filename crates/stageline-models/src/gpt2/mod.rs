//! GPT-2: its configuration, its layers, and the names of its tensors.

mod config;
mod layers;
mod names;

pub use config::Config;
pub use layers::{Block, Embeddings, Norm, norm};
pub use names::NAMES;
