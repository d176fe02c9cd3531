//! The bubble bench, which measures bubble and throughput against M: its flags, measurements, predictions and outputs.

pub mod files;
pub mod flags;
pub mod measure;
pub mod pictures;
pub mod point;
pub mod predict;
