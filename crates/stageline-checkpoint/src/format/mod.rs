//! The checkpoint format: the contents of a checkpoint's files, and the names of its files and folders.
//!
//! - Input and output: [`Tensor`]s, a [`Checkpoint`] and its [`Progress`] on one side, the text and bytes of files on
//!   the other. The code that writes a file's contents is next to the code that parses them, so that a format changes
//!   in one place.
//! - Except for `folder`, which lists the names in a folder, the code here must not access the disk. Code that parses
//!   text or bytes must not trust them: it returns a [`Damage`](crate::Damage) and must not panic.
//!
//! A module imports only from the modules that are listed before it.
//!
//! - `seal`: SHA-256 in hexadecimal, and the seal at the end of a manifest.
//! - `json`: JSON that keeps every bit of a float and rejects repeated keys.
//! - `names`: the name of the file that contains a tensor. `folder`: the names of checkpoints, such as
//!   `000007-step-100`, and the list of them in a folder.
//! - `tensor`: [`Tensor`], a dtype, a shape and bytes. `finite`: the search for infinities and NaNs in a tensor.
//! - `frozen`: [`FrozenTensor`], the hash of a frozen tensor whose values are not stored in the checkpoint.
//! - `checkpoint`: [`Checkpoint`], the data to save.
//! - `manifest`: [`Manifest`], the JSON file with everything but the tensors: [`FileEntry`] and [`TensorEntry`].
//! - `shard`: a tensor file in the safetensors format. `index`: Hugging Face's index of the parameters.
//! - `validate`: checks that the names, sizes and files of a manifest agree with each other.

pub(crate) mod checkpoint;
pub(crate) mod finite;
pub(crate) mod folder;
pub(crate) mod frozen;
pub(crate) mod index;
pub(crate) mod json;
pub(crate) mod manifest;
pub(crate) mod names;
pub(crate) mod seal;
pub(crate) mod shard;
pub(crate) mod tensor;
pub(crate) mod validate;

pub use checkpoint::{Checkpoint, LossScale, Progress};
pub use frozen::FrozenTensor;
pub use manifest::{FileEntry, Manifest, TensorEntry};
pub use tensor::Tensor;
