//! Checkpoints of a pipeline run, as files that are complete or not there.
//!
//! A [`Store`] is a folder into which one process writes checkpoints; a [`Writer`] does so in the background. [`Saved`]
//! is one on disk. No tensors of a framework come in here: a [`Tensor`] is a type, a shape and bytes.
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
//! };
//! # let folder = tempfile::tempdir().unwrap();
//! # let dir = folder.path();
//! let store = Store::open(dir, NonZero::new(2).unwrap())?; // keeps the latest two
//! let mut writer = Writer::new(store)?;
//! writer.write(checkpoint.clone())?; // comes back at once; waits only for the one before
//! let path = writer.finish()?;
//! assert_eq!(path, Some(dir.join("000001-step-100")));
//!
//! let saved = Saved::open(dir)?; // the latest, or a certain one by its own path
//! assert_eq!(saved.read()?, checkpoint);
//! # Ok::<(), stageline_checkpoint::CheckpointError>(())
//! ```
//!
//! # On disk
//!
//! ```text
//! DIR/
//!   .lock                              held by the store that writes; never removed
//!   .writing-4711-000008/              being written, by process 4711
//!   .removing-000005-step-50/          being removed
//!   000006-step-60/
//!   000007-step-100/                   sequence number, steps done
//!     blocks.3.safetensors             parameters, a file for each layer group
//!     optimizer/blocks.3.safetensors   their optimizer state, as `<parameter>/<field>`
//!     model.safetensors.index.json     Hugging Face's index of the parameters
//!     manifest.json                    everything else; written last
//! ```
//!
//! - The sequence number is one more than the highest in the folder. The latest checkpoint is that with the highest
//!   number, whatever its steps and times: a run that resumes from step 50 after step 100 goes on in the same folder.
//! - The layer group of a name is its first part, and the second if that is a number: `blocks.3` of
//!   `blocks.3.up.weight`, `embedding` of `embedding.weight`. The group of optimizer state is that of what is before
//!   the last `/`. In file names, what is not of `A-Z a-z 0-9 _ . -` is written as `%` and two digits, as is a dot at
//!   the beginning; an empty group is `%`; one of more than 150 bytes is cut to 100, with `~` and half of its SHA-256
//!   added.
//! - The files are plain safetensors, with the format `pt` in their headers, and tensors have their full names in them.
//! - A checkpoint may be moved, renamed and copied. Files that it does not list, such as a `config.json`, are ignored.
//!
//! # The manifest and its seal
//!
//! `manifest.json` is a [`Manifest`] as JSON, with one more field at the end:
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
//! The text ends with `,\n  "sha256": "`, 64 small hexadecimal digits, and `"\n}\n`; the digits are the SHA-256 of all
//! that is before this ending. Every flipped bit is thus seen, in the seal itself too. The seal is the same in all
//! formats, and looked at before the version, so that damage is not taken for a newer format. It is no signature:
//! whoever can write files can seal them.
//!
//! A float that JSON's parser would not give back bit for bit is written as a string: of the loss scale as it is, in
//! `run` as `{"$f64": "<float>"}`.
//!
//! # What is guaranteed
//!
//! - Under the name of a checkpoint there is a complete one or nothing, whenever the writer is killed. It is written
//!   into another folder; files, folders and at last the manifest are synced; then the folder is renamed, and `DIR` is
//!   synced. On a disk that keeps what it has acknowledged, this holds when power is lost, too.
//! - A save that fails before it prunes leaves the checkpoints as they were. If `DIR` cannot be synced, the new name is
//!   taken back. If that fails too, the checkpoint stays, and the error says that a power loss may remove it
//!   ([`CheckpointError::NotDurable`]). Old checkpoints go only after `DIR` was synced.
//! - Old checkpoints go when the new one is complete, and lose their names, synced, before their files. Nothing else in
//!   the folder is touched. Writers that are killed between the two leave more than `keep`, until the next one is
//!   written.
//! - A checkpoint with a value that is infinite or not a number is not written, so that it never pushes out good ones;
//!   this is looked for in F16, BF16, F32, F64 and C64. It is not read, either.
//! - A checkpoint that was damaged is refused with the file and the reason; none is ever read in part, and no older one
//!   is taken silently. Nor does one that was made to do harm make the reader panic, leave the folder, or ask for
//!   memory out of proportion to the bytes that are there: names and sizes must follow from each other before a file is
//!   opened.
//! - No message of an error has characters that a terminal obeys instead of showing, or more than
//!   [`CheckpointError::MOST_BYTES`], whatever text is in the checkpoint. [`Printable`] does the same for text that a
//!   caller takes from one.
//! - One store writes into a folder at a time.
//!
//! # What is not
//!
//! - Network file systems, on which locks and renames may mean less.
//! - Disks that acknowledge what they have not written. On other systems than Unix, folders are not synced.
//! - File systems that do not tell `A` from `a`, if two layer groups differ in nothing else: the second file is an
//!   error.
//! - Two checkpoints do not share files: each takes the whole of its size.
//! - A file that someone changes in the moment in which it is read is seen by its hash; links and folders that someone
//!   exchanges in that moment are followed.
//! - Reading asks for as much memory as the tensors take. Writing takes no copy of them.
//!
//! # Layout
//!
//! - `tensor`, `checkpoint`: what is saved; `manifest`: what is said of it; `exact`, `unique`: its JSON; `seal`: its
//!   end.
//! - `names`: tensors to files; `folder`: the names of checkpoints; `index`, `shard`: what is in the files.
//! - `plan`, `write`, `output`, `prune`, `store`, `writer`: writing, from the inside out; `point`: where it can be
//!   killed.
//! - `check`, `finite`, `disk`, `saved`: reading. `error`, `damage`: what can go wrong, and the way out; `printable`:
//!   their text.

mod check;
mod checkpoint;
mod damage;
mod disk;
mod error;
mod exact;
mod finite;
mod folder;
mod hash;
mod index;
mod manifest;
mod names;
mod output;
mod plan;
mod point;
mod printable;
mod prune;
mod saved;
mod seal;
mod shard;
mod store;
mod tensor;
mod unique;
mod write;
mod writer;

pub use checkpoint::{Checkpoint, LossScale, Progress};
pub use damage::Damage;
pub use error::CheckpointError;
pub use manifest::{FileEntry, Manifest, TensorEntry};
pub use point::WritePoint;
pub use printable::Printable;
pub use safetensors::Dtype;
pub use saved::Saved;
pub use store::Store;
pub use tensor::Tensor;
pub use writer::Writer;
