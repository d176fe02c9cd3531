//! Checkpoints on a real disk: written, read, damaged in every way, and killed while they are written.

mod disk_full;
mod folder_sync;
mod hostile;
mod kills;
mod messages;
mod resealed;
mod round_trip;
mod seeds;
mod store;
mod toy;
mod weights;
mod writer;
