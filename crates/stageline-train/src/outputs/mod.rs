//! A run's outputs: its log, its trace, its TensorBoard files, its HTML page, and its progress bar.
//!
//! Input: reports of steps and evaluations from the training loop, and the paths of the files. Output: lines and files
//! on disk, and messages on the terminal. This folder owns the open output files and the conversion of the pipeline's
//! reports into the log records of `stageline-report`. It must not train, decide when an evaluation or a checkpoint is
//! due, or know where batches come from.
//!
//! - `log`: writes the log, the trace, TensorBoard files and the HTML page (`Log`, `Outputs`).
//! - `log_file`: opens the file of the log.
//! - `paths`: checks of the paths of output files.
//! - `amount`: the amount of data in a step and in an epoch (`Amount`).
//! - `record`: converts the pipeline's reports and estimates into log records.
//! - `smoothing`: the running averages behind the log's smoothed gradient noise scales (`SmoothedNoise`).
//! - `progress`: the progress bar, and warnings above it (`Progress`).
//! - `unwritten`: errors from writing these outputs, or a checkpoint, after the last step (`Unwritten`).

pub mod amount;
pub mod log;
mod log_file;
pub mod paths;
pub mod progress;
pub mod record;
mod smoothing;
pub mod unwritten;
