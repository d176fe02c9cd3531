//! The checkpoints of a run: the latest ones, and the one with the lowest validation loss.
//!
//! - `identity`: the facts by which checkpoints of one training are recognised (`Identity`).
//! - `place`: opens the folder for the latest checkpoints, and handles signals (`Place`).
//! - `best`: keeps the checkpoint with the lowest validation loss (`Best`).
//! - `background`: a folder into which a thread writes checkpoints while the training continues (`Background`).
//! - `keeper`: decides when checkpoints are written, and when the training ends early (`Keeper`).

mod background;
mod best;
mod identity;
mod keeper;
mod place;

pub use identity::Identity;
pub use keeper::{Finished, Keeper};
pub use place::place;
