//! Generates text with a pipeline that can also train, or generate again, afterwards.
//!
//! - `generate`: generates tokens one by one, with a key-value cache on each stage (`Generation`), and draws them
//!   (`Sampling`).
//! - `settings`: the settings of a folder's `generation_config.json`.

mod generate;
mod settings;

pub use generate::{Generation, GenerationError, Sampling};
