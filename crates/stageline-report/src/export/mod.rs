//! Converts the measurements of a training run to the file formats of other programs: a trace for Perfetto ([`Trace`]),
//! and event files for TensorBoard ([`TensorBoard`]).
//!
//! Input: the timed events of each training step ([`Trace`]), or scalar measurements of the step, such as its loss
//! ([`TensorBoard`]). Output: the JSON string of a trace file, or records written to an event file. This module owns
//! these two formats: slices, counters and arrows of a trace; protocol buffers, record lengths and checksums of an
//! event file. It must not summarise steps, and must not need the whole run: a training program passes each step as
//! soon as the step is done.
//!
//! - `trace`: Chrome's trace event format, with a track for each stage.
//! - `tensorboard`: TensorBoard's event files (TFRecords), step by step.

mod tensorboard;
mod trace;

pub use tensorboard::TensorBoard;
pub use trace::Trace;
