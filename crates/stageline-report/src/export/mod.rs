//! Writes a run in the file formats of other programs: [`Trace`] for Perfetto, [`TensorBoard`] for TensorBoard.
//!
//! Input: the events of one step after the other ([`Trace`]), or its figures ([`TensorBoard`]). Output: the JSON text
//! of a trace file, or records written to an event file. This module owns these two formats: slices, counters and
//! arrows of a trace; protocol buffers, record lengths and checksums of an event file. It must not summarise steps, and
//! must not need the whole run: a training passes each step while it runs.
//!
//! - `trace`: Chrome's trace event format, with a track for each stage.
//! - `tensorboard`: TensorBoard's event files (TFRecords), step by step. `stage_noise`: the noise scale of each stage for
//!   them.

mod stage_noise;
mod tensorboard;
mod trace;

pub use stage_noise::StageNoise;
pub use tensorboard::TensorBoard;
pub use trace::Trace;
