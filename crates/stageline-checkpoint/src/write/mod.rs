//! Writes checkpoints into a folder so that each is complete or absent, and removes old ones: [`Store`] blocks the
//! caller, [`Writer`] works in the background.
//!
//! - Input: a [`Checkpoint`](crate::Checkpoint), and the folder of a [`Store`].
//! - Output: the path of the new checkpoint. Tests can simulate a crash at each [`WritePoint`] of a save.
//! - The code here must not give a checkpoint name to an incomplete checkpoint, or remove an old one before the new one
//!   is durable. It must remove only entries that have a name which a store gives. It must return an error for a
//!   checkpoint that could not be read back.
//!
//! A module imports only from the modules that are listed before it.
//!
//! - `write_point`: [`WritePoint`], the fault-injection points of a save.
//! - `plan`: validates a checkpoint and assigns its tensors to files.
//! - `output`: a file that is hashed while it is written. `files`: writes all files of a checkpoint into a temporary
//!   folder.
//! - `prune`: removes old checkpoints, in an order that is safe if the process crashes.
//! - `store`: [`Store`], which locks the folder, writes, publishes by a rename and prunes. `writer`: [`Writer`], which
//!   saves on a background thread.

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
