//! Writes the parameters of a pipeline as files that Python's libraries read.
//!
//! - `folder`: a folder of the hub with the whole model, and logits as a file.
//! - `adapters`: a folder of the library PEFT with the adapters.

mod adapters;
mod folder;

pub(crate) use folder::{new_tensor, write_copy, write_new};
