//! Generates text with a pipeline, which can train or generate again afterwards.
//!
//! - `generate`: generates tokens one by one, with a KV cache on each stage (`Generation`), and samples them
//!   (`Sampling`).
//! - `settings`: the generation settings in a model folder's `generation_config.json`.

mod generate;
mod settings;

pub use generate::{Generation, GenerationError, Sampling};
