//! Writes a run in the file formats of other programs: [`Trace`] for Perfetto, [`TensorBoard`] for TensorBoard.
//!
//! Inputs: the events of one step after the other ([`Trace`]), or its figures ([`TensorBoard`]). Outputs: the JSON text
//! of a trace file, or records written to an event file.
//!
//! This module converts. It must not summarise steps, and must not need the whole run: a training passes each step
//! while it runs.

mod tensorboard;
mod trace;

pub use tensorboard::TensorBoard;
pub use trace::Trace;
