//! The GPT example's model and training text, which tests and benches use too. The modules are public, because callers
//! name short items with their module, such as `model::gpt` and `model::costs`.
//!
//! - `model`: the GPT's first layer, blocks and last layer, which can be divided into pipeline stages.
//! - `text`: batches of text from a `Source`.
//! - `sample`: text that the trained model generates.

pub mod model;
pub mod sample;
pub mod text;

/// Compiles the example in the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
