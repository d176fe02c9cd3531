//! A run's checkpoints: the latest ones, and the one with the lowest validation loss.
//!
//! - `identity`: decides whether a checkpoint belongs to the same training (`Identity`).
//! - `place`: opens the folder for the latest checkpoints, and handles signals (`Place`).
//! - `best`: keeps the checkpoint with the lowest validation loss (`Best`).
//! - `background`: a checkpoint folder into which a thread writes while training continues (`Background`).
//! - `keeper`: decides when checkpoints are written, and when training ends early (`Keeper`).

mod background;
mod best;
mod identity;
mod keeper;
mod place;

pub use identity::{Identity, check_model};
pub use keeper::{Finished, Keeper};
pub use place::place;
