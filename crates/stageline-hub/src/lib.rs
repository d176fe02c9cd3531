//! Reads and writes model folders of the Hugging Face hub: `config.json` and weights in safetensors.
//!
//! A [`ModelFolder`] maps the weights files of a model folder into memory and checks all of their headers when it is
//! opened. A [`Layout`] describes the weights files to write, for example with the same file names, tensor names,
//! dtypes and shapes as an existing model, and writes one tensor at a time. The crate knows no tensor framework: a
//! tensor is a dtype, a shape and bytes.
//!
//! ```
//! use serde_json::json;
//! use stageline_hub::{Dtype, FolderError, Layout, ModelFolder, TensorLayout, copy_companions, write_config};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let (base, tuned) = (&dir.path().join("base"), &dir.path().join("tuned"));
//! // A new model with one tensor.
//! write_config(base, &json!({ "model_type": "llama" }))?;
//! let weight = TensorLayout { name: "lm_head.weight".into(), dtype: Dtype::BF16, shape: vec![1, 2] };
//! Layout::single([weight])?.write(base, |_name| Ok::<_, FolderError>(vec![1.0, 2.0]))?;
//!
//! // A trained copy with the same files, names, shapes and types.
//! let folder = ModelFolder::open(base)?;
//! assert_eq!(folder.config()?["model_type"], "llama");
//! copy_companions(base, tuned)?;
//! folder.layout()?.write(tuned, |name| -> Result<Vec<f32>, FolderError> {
//!     let trained = folder.tensor(name)?.to_f32()?.into_iter().map(|value| value * 2.0);
//!     Ok(trained.collect())
//! })?;
//! let tuned = ModelFolder::open(tuned)?;
//! assert_eq!(tuned.expect("lm_head.weight", &[1, 2])?.to_f32()?, [2.0, 4.0]);
//! # Ok::<(), FolderError>(())
//! ```
//!
//! # Files
//!
//! ```text
//! FOLDER/
//!   config.json                        describes the model, a JSON object; optional for reading the weights
//!   model.safetensors                  all weights; if present, no other weights file is read
//!   model.safetensors.index.json       the file of each tensor, if the weights are in several files
//!   model-00001-of-00002.safetensors   weights that the index names
//!   tokenizer.json ...                 companions, which are copied byte for byte
//!   additional_chat_templates/         companions too: further chat templates, whose names end with .jinja
//! ```
//!
//! - Pickled weights (`pytorch_model.bin`) are not read; the error says how to convert them.
//! - A model folder with an adapter (`adapter_config.json`, for example of LoRA) is an error, because the adapter's
//!   weights would have to be added to the model's. [`ModelFolder::open_adapter`] reads an adapter folder.
//! - A folder may have both an index and a `model.safetensors`. This crate then reads only `model.safetensors`, as the
//!   Transformers library does. [`Layout::write`] returns an error instead of creating such a folder.
//! - Written weights files are safetensors with `format: pt` in their headers. Their tensors are in the order of the
//!   layout. A file that was written by the safetensors crate is therefore reproduced byte for byte if no value has
//!   changed.
//!
//! # Guarantees
//!
//! - **Hostile input.** A malicious folder cannot make the reader panic, open a file outside the folder, or allocate
//!   much more host memory than there are bytes on disk. Symbolic links in the folder are followed, because the cache
//!   of the Hugging Face hub consists of links.
//! - **Safe messages.** Whatever text the folder contains, no error message contains characters that a terminal
//!   executes instead of showing, or is longer than [`FolderError::MOST_BYTES`].
//! - **Exact values.** Reading F32, F16 and BF16 as f32 is exact. Writing F32 is exact, and writing F16 and BF16 rounds
//!   to the nearest value, ties to even. A finite value that would become infinite is an error.
//! - **Complete files.** A file gets its final name only when it is complete and synced to disk, and the index is
//!   written last.
//!
//! # Limits
//!
//! - Other programs must not change the weights files of an open folder in place. If a mapped file is truncated, the
//!   next access ends the process with a bus error. Replacing a file by renaming is safe.
//! - Only the headers of weights files are checked, not the values: the safetensors format has no checksums.
//! - A process that is killed while it writes leaves files named `.stageline-hub-*.tmp`, which may be deleted.
//! - Writing takes no lock, so two processes must not write into the same folder concurrently.
//!
//! # Modules
//!
//! A module imports only from the modules that are listed before it.
//!
//! - `names`: the names of the files in a folder. `shown`: paths and shapes, made safe to print. `refusal`:
//!   [`Refusal`], the reason why this crate does not write a file. `error`: [`FolderError`].
//! - `disk`: opens untrusted files ([`read_file`]), and replaces files by complete new ones.
//! - `tensor`: [`TensorView`] and [`TensorInfo`]. `weights`: a memory-mapped weights file. `index`: the index of the
//!   weights files. `similar`: suggestions for missing tensor names.
//! - `folder`: [`ModelFolder`], which reads.
//! - `layout`: [`Layout`], the files and tensors to write. `values`: [`Values`] of a tensor, and their conversion.
//!   `header`: the header of a weights file. `write`: writes a layout. `tensor_file`: [`TensorFile`], which writes a
//!   single tensor in parts.
//! - `other_files`: [`copy_companions`], [`write_config`] and [`write_adapter_config`].
//! - `check`: [`check_export`], [`check_weights`] and [`check_file`], which detect before training starts that its
//!   result could not be written. They create missing folders as a trial, and remove them again.

mod check;
mod disk;
mod error;
mod folder;
mod header;
mod index;
mod layout;
mod names;
mod other_files;
mod refusal;
mod shown;
mod similar;
mod tensor;
mod tensor_file;
mod values;
mod weights;
mod write;

pub use check::{check_export, check_file, check_weights};
pub use disk::read_file;
pub use error::FolderError;
pub use folder::ModelFolder;
pub use layout::{FileLayout, Layout, TensorLayout};
pub use other_files::{copy_companions, write_adapter_config, write_config};
pub use refusal::Refusal;
pub use safetensors::Dtype;
pub use tensor::{TensorInfo, TensorView};
pub use tensor_file::TensorFile;
pub use values::Values;

/// Compiles the example in the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
