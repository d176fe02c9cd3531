//! GPT-2: its configuration, its layers, and the names of its tensors.
//!
//! Input: the JSON of a `config.json`, the token embedding table and the KV cache. Output: the validated configuration,
//! the layers with newly initialised parameters, and the names of tensors. This folder must not read tensors or other
//! files: `model` replaces the initial parameters by the tensors of a model folder. It must not know pipelines or
//! tokenizers.
//!
//! - `config`: the fields of `config.json`, validated (`Config`).
//! - `layers`: the embeddings, a transformer block and the final norm (`Embeddings`, `block`, `norm`).
//! - `names`: the name of each parameter's tensor on the Hugging Face hub (`NAMES`).

mod config;
mod layers;
mod names;

pub use config::Config;
pub use layers::{Block, Embeddings, Norm, block, norm};
pub use names::NAMES;
