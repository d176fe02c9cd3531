//! A run in the file formats of other programs: Perfetto ([`Trace`]) and TensorBoard ([`TensorBoard`]).
//!
//! Inputs: the events or figures of one step after the other. Outputs: the text of a trace, or records written to a file.
//!
//! This module converts. It must not summarise steps, and must not need the whole run: a training feeds it while it runs.

mod tensorboard;
mod trace;

pub use tensorboard::TensorBoard;
pub use trace::Trace;
