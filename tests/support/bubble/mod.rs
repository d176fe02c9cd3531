//! The bubble bench: its flags, measurements and outputs.

pub mod flags;
pub mod measure;
pub mod point;
pub mod report;
