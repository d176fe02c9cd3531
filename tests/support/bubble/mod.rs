//! The bubble bench, which measures a pipeline's bubble (idle share of the stage time) and throughput for several
//! numbers of micro-batches: its flags, measurements, predictions and outputs.

pub mod files;
pub mod flags;
pub mod measure;
pub mod pictures;
pub mod point;
pub mod predict;
pub mod warm_up;
