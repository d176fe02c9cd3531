//! Reads a checkpoint from disk, as a whole or not at all: [`Saved`].
//!
//! - Input: the path of a checkpoint, or of a folder of checkpoints.
//! - Output: a [`Saved`], then a [`Checkpoint`](crate::Checkpoint); or an error with the damaged file and the next
//!   older checkpoint.
//! - Nothing in a file is trusted. The code here must not panic on any input, follow a name out of the checkpoint's
//!   folder, or allocate more than the files hold. It must not return a part of a checkpoint, or write anything.
//!
//! `locate` finds the checkpoint that a path names. `file` reads one file of unknown size and contents. `saved` opens
//! the manifest, then reads and validates all files.

mod file;
mod locate;
mod saved;

pub use saved::Saved;
