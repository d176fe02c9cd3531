//! Writes checkpoints into a folder so that each is complete or absent, and removes old ones.
//!
//! - Input: a [`Checkpoint`](crate::Checkpoint), and the folder of a [`Store`].
//! - Output: the path of the new checkpoint. A caller can observe each [`WritePoint`] at which a crash would leave
//!   something else behind.
//! - The code here must not give a name to an incomplete checkpoint, remove an old one before the new one is durable, or
//!   remove anything whose name is not one that a store gives. It must refuse a checkpoint that cannot be read back.
//!
//! Imports go from the later to the earlier modules.
//!
//! - `write_point`: the points of a crash.
//! - `plan`: the checkpoint, validated and assigned to files.
//! - `output`: a file that is hashed while it is written; `files`: all files of a checkpoint.
//! - `prune`: the removal of old checkpoints.
//! - `store`: the order of all steps of a save; `writer`: saves in the background.

mod files;
mod output;
mod plan;
mod prune;
mod store;
mod write_point;
mod writer;

pub use store::Store;
pub use write_point::WritePoint;
pub use writer::Writer;
