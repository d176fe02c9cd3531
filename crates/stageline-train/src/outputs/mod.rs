//! The outputs of a run: its log, its trace, its files for TensorBoard, its HTML page, and its progress bar.
//!
//! Input: reports of steps and evaluations from the loop, and the paths of the files. Output: lines and files on disk,
//! and text on the terminal. This folder owns the open output files and the conversion of the library's reports into
//! the log's structures of `stageline-report`. It must not train, decide when an evaluation or a checkpoint is due, or
//! know where batches come from.
//!
//! - `log`: writes the log, the trace, TensorBoard's files and the HTML page (`Log`, `Outputs`).
//! - `amount`: the data in a step and in an epoch (`Amount`).
//! - `record`: converts reports and estimates of the library into lines of the log.
//! - `smoothing`: the running averages from which the smoothed noise scales of the log come (`SmoothedNoise`).
//! - `progress`: the progress bar, and warnings above it (`Progress`).
//! - `unwritten`: the errors in writing these outputs, or a checkpoint, after the last step (`Unwritten`).

pub mod amount;
pub mod log;
pub mod progress;
pub mod record;
mod smoothing;
pub mod unwritten;
