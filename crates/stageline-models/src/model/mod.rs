//! A language model: its configuration, the source of its parameters, and its layers as a [`Row`](stageline::Row).
//!
//! - `language_model`: the model (`LanguageModel`): which parameters are trained, its layers, and facts such as the
//!   size of its vocabulary.
//! - `open`: opens a model folder of the Hugging Face hub, and creates a new model from a configuration.
//! - `read_lazily`: makes new layers read their parameters from a folder when these are first used.

mod language_model;
mod open;
mod read_lazily;

pub use language_model::{LanguageModel, Logits, Tokens};
pub(crate) use read_lazily::ReadLazily;
