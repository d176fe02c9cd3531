//! The bubble bench: its flags, measurements, predictions and outputs.

pub mod files;
pub mod flags;
pub mod measure;
pub mod pictures;
pub mod point;
pub mod predict;
