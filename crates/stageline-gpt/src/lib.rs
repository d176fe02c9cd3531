//! The model and the training text of the GPT example, which tests and benches use as well. The modules are public,
//! because callers name short items with their module, such as `model::gpt` and `model::costs`.
//!
//! - `model`: the first layer, the blocks and the last layer of the GPT, which can be divided into stages.
//! - `text`: batches of text from a `Source`.
//! - `sample`: text that the trained model generates.

pub mod model;
pub mod sample;
pub mod text;

/// Compiles the example in the README as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
