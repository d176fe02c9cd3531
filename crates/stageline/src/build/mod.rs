//! Builds a pipeline: from stages and settings to started threads.
//!
//! Takes a [`chain`](chain::Chain) of stages, each with a device and an optimizer, and the settings of
//! [`PipelineBuilder`](builder::PipelineBuilder). Validates all of them, generates and checks the plan, distributes the
//! modules over replicas and devices, and returns a [`Pipeline`](crate::Pipeline). No step runs here.

pub(crate) mod assemble;
pub(crate) mod assembly;
pub(crate) mod builder;
pub(crate) mod chain;
pub(crate) mod ownership;
mod validate;
