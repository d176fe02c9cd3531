//! The model and the text of the GPT example, which tests and benches use as well.
//!
//! - `model`: the layers of the GPT, as a row that can be cut; `text`: batches of text from a `Source`.
//! - `sample`: text from the trained model.

pub mod model;
pub mod sample;
pub mod text;
