//! Facts about the running forward that a layer asks for, without extra arguments in its signature.
//!
//! The stage runner, or a training loop without a pipeline, sets these facts around a forward, and layers read them on
//! the same thread. Nothing here may outlive the call that set it, or reach another thread.
//!
//! - `samples`: the samples of the micro-batch that is computed.
//! - `after_step`: effects that run after the optimizer step.
//! - `recomputation`: whether the forward is a recomputation.
//! - `thread_scope`: values that hold on one thread for the time of a call.

pub mod after_step;
pub mod recomputation;
pub mod samples;
pub mod thread_scope;
