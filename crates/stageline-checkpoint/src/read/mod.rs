//! Reads a checkpoint from disk, either completely or not at all: [`Saved`].
//!
//! - Input: the path of a checkpoint, or of a folder of checkpoints.
//! - Output: a [`Saved`], then a [`Checkpoint`](crate::Checkpoint); or an error with the damaged file and the next
//!   older checkpoint.
//! - Nothing in a file is trusted. The code here must not panic on any input, follow a name out of the checkpoint
//!   folder, or allocate more memory than the files' contents take. It must not return a part of a checkpoint, or write
//!   anything.
//!
//! `locate` resolves a path to a checkpoint folder. `file` reads one file of unknown size and contents. `saved` opens
//! the manifest, then reads and validates all files.

mod file;
mod locate;
mod saved;

pub use saved::Saved;
