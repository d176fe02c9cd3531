//! The outputs of a run: its log, trace, page and progress.
//!
//! Takes reports of steps and evaluations. Must not train, or know where batches come from.
//!
//! - `log`: the log, the trace, TensorBoard's files and the HTML page (`Log`).
//! - `record`: reports and estimates as lines of the log.
//! - `progress`: the progress bar, and warnings above it (`Progress`).

pub mod log;
pub mod progress;
pub mod record;
