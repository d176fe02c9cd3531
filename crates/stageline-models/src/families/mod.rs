//! The supported model families: their configurations, layers, and tensor names on the Hugging Face hub.
//!
//! Input: the JSON of a `config.json`, the token embedding table and the KV cache. Output: a family's validated
//! configuration (`Family`), and its layers, whose types are the same for all families. This folder must not read files
//! or know pipelines: `model` replaces the newly initialised parameters by the tensors of a model folder.
//!
//! - `family`: the supported architectures (`Family`), and the types of their layers (`Embeddings`, `Block`, `Head`).
//! - `gpt2`, `llama`: each family's configuration, layers and tensor names.
//! - `block`: the transformer block of all families, whose two halves may be on different stages.
//! - `head`: the projection to the vocabulary, and the loss.
//! - `initial`: newly initialised linear layers and embedding tables.
//! - `limits`: the ranges of valid numbers in a configuration. `unsupported`: fields that no family implements.

mod block;
mod family;
pub(crate) mod gpt2;
mod head;
pub(crate) mod initial;
pub(crate) mod limits;
pub(crate) mod llama;
pub(crate) mod unsupported;

pub use block::Activations;
pub use family::{Block, Embeddings, Head, Samples};
pub(crate) use family::{Family, KNOWN, architecture, last_position};
