//! A language model: its configuration, the source of its parameters, and its layers as a row.
//!
//! - `language_model`: the model (`LanguageModel`): the parameters that are trained, its row of layers, and facts such
//!   as the size of its vocabulary.
//! - `open`: opens a folder of the hub, and creates a new model from a configuration.
//! - `read_lazily`: changes the parameters of new layers such that their values are read from a folder when they are
//!   first used.

mod language_model;
mod open;
mod read_lazily;

pub use language_model::{LanguageModel, Logits, Tokens};
pub(crate) use read_lazily::ReadLazily;
