//! The generation of text by a pipeline that stays alive.
//!
//! - `generate`: tokens one by one, with a key-value cache on each stage (`Generation`), and how they are drawn (`Sampling`).
//! - `settings`: the settings of a folder's `generation_config.json`.

mod generate;
mod settings;

pub use generate::{Generation, GenerationError, Sampling};
