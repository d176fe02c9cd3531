//! Checkpoints of a training run, as files that are either complete or absent.
//!
//! A [`Store`] is a folder where one process saves checkpoints; a [`Writer`] saves them in the background. A [`Saved`]
//! is a checkpoint on disk that can be read. The crate knows no tensor framework: a [`Tensor`] is a dtype, a shape and
//! bytes.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::num::NonZero;
//!
//! use stageline_checkpoint::{Checkpoint, Dtype, Progress, Saved, Store, Tensor, Writer};
//!
//! let weight = Tensor::new(Dtype::F32, vec![2], [1f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect());
//! let checkpoint = Checkpoint {
//!     progress: Progress { steps: 100, optimizer_steps: 100, loss_scale: None },
//!     run: BTreeMap::from([("seed".to_owned(), 7.into())]),
//!     parameters: BTreeMap::from([("blocks.0.weight".to_owned(), weight)]),
//!     optimizer: BTreeMap::new(),
//!     frozen: BTreeMap::new(),
//! };
//! # let folder = tempfile::tempdir().unwrap();
//! # let dir = folder.path();
//! let store = Store::open(dir, NonZero::new(2).unwrap())?; // keeps the latest two
//! let mut writer = Writer::new(store)?;
//! writer.write(checkpoint.clone())?; // returns at once, unless the previous checkpoint is still being written
//! let path = writer.finish()?;
//! assert_eq!(path, Some(dir.join("000001-step-100")));
//!
//! let saved = Saved::open(dir)?; // the latest checkpoint, or a certain one by its own path
//! assert_eq!(saved.read()?, checkpoint);
//! # Ok::<(), stageline_checkpoint::CheckpointError>(())
//! ```
//!
//! # Files
//!
//! ```text
//! DIR/
//!   .lock                              locked by the store that writes; never removed
//!   .writing-4711-000008/              in progress, written by process 4711
//!   .removing-000005-step-50/          an old checkpoint that is being removed
//!   000006-step-60/
//!   000007-step-100/                   sequence number and completed steps
//!     blocks.3.safetensors             parameters, one file for each layer group
//!     optimizer/blocks.3.safetensors   optimizer state, under `<parameter>/<field>`
//!     model.safetensors.index.json     Hugging Face's index of the parameters
//!     manifest.json                    everything else; written last
//! ```
//!
//! - A new checkpoint gets the highest sequence number in the folder plus one. The latest checkpoint is the one with
//!   the highest sequence number, whatever its step count and modification time. A run that has saved step 100, and
//!   then resumes from step 50, can therefore continue in the same folder.
//! - A layer group is a set of tensors that share a file. A tensor's layer group is the first component of its name,
//!   and the second component if that is a number. It is `blocks.3` for `blocks.3.up.weight`, and `embedding` for
//!   `embedding.weight`. A tensor of the optimizer state belongs to the layer group of its parameter, whose name is the
//!   part before the last `/`.
//! - File names encode the layer group. Every byte outside `A-Z a-z 0-9 _ . -`, and a leading dot, becomes `%` and two
//!   hexadecimal digits. An empty group becomes `%`. A name of more than 150 bytes is truncated to 100, followed by `~`
//!   and half of the group's SHA-256.
//! - The tensor files are plain safetensors with the format `pt` in their headers. Each tensor in them has its full
//!   name.
//! - A checkpoint may be moved, renamed and copied. Files that its manifest does not list, such as a `config.json`, are
//!   ignored.
//!
//! # Manifest and seal
//!
//! `manifest.json` is a [`Manifest`] as JSON, with one more field at the end, the seal, which detects damage:
//!
//! ```text
//! {
//!   "version": 1,
//!   ...
//!   "optimizer": {},
//!   "sha256": "<64 digits>"
//! }
//! ```
//!
//! The file ends with `,\n  "sha256": "`, 64 lowercase hexadecimal digits, and `"\n}\n`. The digits are the SHA-256 of
//! everything before this ending, so every flipped bit is detected, including a bit of the seal. The seal is the same
//! in all format versions and is checked before the version, so damage is never mistaken for a newer format. The seal
//! is not a signature: whoever can write files can seal them.
//!
//! JSON parsers do not read every float back bit for bit. A float that would change is written as a string: a loss
//! scale as the plain string, a value in `run` as `{"$f64": "<float>"}`.
//!
//! # Frozen parameters
//!
//! A training run that updates only a small part of a large model may leave the frozen parameters out of its
//! checkpoints. The manifest then lists their dtypes, shapes and SHA-256 hashes under `frozen`, and a resumed run takes
//! their values from the model.
//!
//! # Guarantees
//!
//! - **Complete or absent.** The name of a checkpoint refers to a complete checkpoint or to nothing, no matter when the
//!   writer is killed. The checkpoint is written into a temporary folder. Its files, its folders and finally its
//!   manifest are synced to disk. Then the folder is renamed, and `DIR` is synced. If the disk keeps the writes that it
//!   has acknowledged, the guarantee also covers a power loss.
//! - **Failed saves.** A save that fails before it removes old checkpoints leaves the existing checkpoints as they
//!   were. If `DIR` cannot be synced, the rename is undone. If the undo fails too, the checkpoint stays, and the error
//!   says that a power loss may remove it ([`CheckpointError::NotDurable`]). Old checkpoints are removed only after
//!   `DIR` was synced.
//! - **Pruning.** Old checkpoints are removed when the new one is complete. Each is renamed first, and the rename is
//!   synced, before its files are removed. Nothing else in the folder is removed. If a writer is killed in between,
//!   more checkpoints than the limit of [`Store::open`] remain until the next save. Files that cannot be removed
//!   immediately remain until the next save or the next [`Store::open`].
//! - **Finite values.** A checkpoint with an infinity or a NaN is neither written nor read, so it never replaces good
//!   ones. The check covers F16, BF16, F32, F64 and C64.
//! - **Damage.** Reading a damaged checkpoint returns an error with the file and the reason. No part of the checkpoint
//!   is returned, and no older checkpoint is read silently in its place. A link with the name of the latest checkpoint
//!   is an error too. A checkpoint that is pruned while it is read is [`CheckpointError::Removed`].
//! - **Hostile input.** A malicious checkpoint cannot make the reader panic, open a file outside the checkpoint's
//!   folder, or allocate host memory out of proportion to the bytes on disk. The names and sizes in its manifest must
//!   be consistent before any other file is opened.
//! - **Safe messages.** Whatever text the checkpoint contains, no error message contains characters that a terminal
//!   executes instead of showing, or is longer than [`CheckpointError::MOST_BYTES`]. [`Printable`] does the same for
//!   text that a caller takes from a checkpoint.
//! - **One writer.** Only one store at a time writes into a folder.
//!
//! # Limits
//!
//! - On network file systems, locks and renames may guarantee less.
//! - The guarantee does not cover power losses if the disk acknowledges writes before they are durable. Folders are
//!   synced on Unix only.
//! - On a case-insensitive file system, two layer groups whose names differ only in case cannot be saved: creating the
//!   second file is an error.
//! - Checkpoints share no files: each takes its full size on disk.
//! - A file that changes while it is read is detected by its hash. If a link replaces a file or folder between its
//!   check and its opening, the link is followed. A pipe or a device that takes the place of a file is an error, and
//!   the reader does not wait for it.
//! - Reading allocates as much host memory as the tensors take. Writing copies no tensor.
//!
//! # Modules
//!
//! A module imports only from the modules that are listed before it.
//!
//! - `printable`: [`Printable`], untrusted text that is safe to print. `damage`: [`Damage`], the problem with a damaged
//!   checkpoint file. `error`: [`CheckpointError`].
//! - `open`: [`open_at_once`], which opens a file without waiting. `disk`: helpers for folders and paths.
//! - `format`: the contents of a checkpoint's files: [`Checkpoint`], [`Tensor`] and [`Manifest`], and their conversion
//!   to and from text and bytes.
//! - `write`: saves checkpoints into a folder ([`Store`], [`Writer`]). `read`: reads a checkpoint back ([`Saved`]).
//!   Neither of the two imports the other.

mod damage;
mod disk;
mod error;
mod format;
mod open;
mod printable;
mod read;
mod write;

pub use damage::Damage;
pub use error::CheckpointError;
pub use format::{Checkpoint, FileEntry, FrozenTensor, LossScale, Manifest, Progress, Tensor, TensorEntry};
pub use open::open_at_once;
pub use printable::Printable;
pub use read::Saved;
pub use safetensors::Dtype;
pub use write::{Store, WritePoint, Writer};

/// Compiles the example in the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
