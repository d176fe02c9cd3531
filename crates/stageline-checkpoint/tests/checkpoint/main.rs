//! Tests saving and reading checkpoints on a file system, with damaged files and with killed writers.

mod disk_full;
mod error_texts;
mod every_error;
mod folder_sync;
mod fuzz_inputs;
mod hostile;
mod hostile_text;
mod kills;
mod locating;
mod messages;
mod resealed;
mod round_trip;
mod store;
mod target;
mod toy;
mod weights;
mod writer;
