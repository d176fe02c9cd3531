//! The model and the training text of the GPT example, which tests and benches use as well.
//!
//! - `model`: the layers of the GPT, as a row that can be cut into stages; `text`: batches of text from a `Source`.
//! - `sample`: text that the trained model generates.

pub mod model;
pub mod sample;
pub mod text;
