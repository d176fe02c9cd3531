//! Writes a pipeline's parameters as files that Python libraries can load.
//!
//! - `folder`: a model folder of the Hugging Face hub with the whole model, and logits as a file.
//! - `adapters`: an adapter folder of the PEFT library.

mod adapters;
mod folder;

pub(crate) use folder::{new_tensor, write_copy, write_new};
