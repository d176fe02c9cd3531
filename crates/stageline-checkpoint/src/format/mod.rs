//! The contents of a checkpoint's files, and the names of files and folders.
//!
//! - Input and output: tensors and progress on one side, the text and bytes of files on the other. Writing and reading
//!   are next to each other, so that a change of the format is a change in one place.
//! - Except for `folder`, which lists names, no code here may touch the disk. Code that parses text or bytes must not
//!   trust them: it returns a [`Damage`](crate::Damage) and must not panic.
//!
//! Imports go from the later to the earlier modules.
//!
//! - `seal`: SHA-256, and the seal at the end of a manifest.
//! - `json`: JSON that keeps every bit of a float and refuses a repeated key.
//! - `names`: the file of a tensor; `folder`: the names of checkpoints in their folder.
//! - `tensor`, `finite`, `checkpoint`: the data to save.
//! - `manifest`: everything but the tensors.
//! - `shard`: a tensor file; `index`: Hugging Face's index of the parameters.
//! - `validate`: the agreement of a manifest with itself.

pub(crate) mod checkpoint;
pub(crate) mod finite;
pub(crate) mod folder;
pub(crate) mod index;
pub(crate) mod json;
pub(crate) mod manifest;
pub(crate) mod names;
pub(crate) mod seal;
pub(crate) mod shard;
pub(crate) mod tensor;
pub(crate) mod validate;

pub use checkpoint::{Checkpoint, LossScale, Progress};
pub use manifest::{FileEntry, Manifest, TensorEntry};
pub use tensor::Tensor;
