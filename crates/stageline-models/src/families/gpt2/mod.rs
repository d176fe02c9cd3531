//! GPT-2: its configuration, its layers, and the names of its tensors.
//!
//! Input: the JSON of a `config.json`, the table of token embeddings and the key-value cache. Output: the validated
//! configuration, the layers with the parameters of a new model, and the names of tensors. This folder must not read
//! tensors or other files: `parameters` replaces these parameters by the tensors of a folder of the hub. It must not
//! know pipelines or tokenizers.
//!
//! - `config`: the fields of `config.json`, validated (`Config`).
//! - `layers`: the embeddings, a transformer block and the last norm (`Embeddings`, `block`, `norm`).
//! - `names`: the name of each parameter's tensor on the Hugging Face hub (`NAMES`).

mod config;
mod layers;
mod names;

pub use config::Config;
pub use layers::{Block, Embeddings, Norm, block, norm};
pub use names::NAMES;
