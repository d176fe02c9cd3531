//! The supported model families: their configurations, their layers, and the names of their tensors on the Hugging Face
//! hub.
//!
//! Input: the JSON of a `config.json`, the table of token embeddings and the key-value cache. Output: the validated
//! configuration of a family (`Family`), and its layers, which have one type each for all families. This folder must
//! not read files or know pipelines: `model` puts the tensors of a folder in the place of the new parameters.
//!
//! - `family`: the known architectures (`Family`), and the types of their layers (`Embeddings`, `Block`, `Head`).
//! - `gpt2`, `llama`: the configuration of each family, its layers, and the names of its tensors.
//! - `block`: the transformer block of all families, whose two halves may be on different stages. `head`: the loss and
//!   the projection to the vocabulary.
//! - `initial`: parts of layers with their initial values.
//! - `limits`: limits to the numbers of a configuration. `unsupported`: fields that no family implements.

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
