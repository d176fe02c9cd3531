//! Facts about the running forward that layers ask for: its samples, and what to do after the optimizer step.
//!
//! They are kept for each thread while a stage computes.

pub mod after_step;
pub mod samples;
pub(crate) mod thread_scope;
