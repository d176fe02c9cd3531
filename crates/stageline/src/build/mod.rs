//! Builds a pipeline: from stages and settings to started threads.
//!
//! Takes a [`chain`](chain::Chain) of stages, each with a device and an optimizer, and the settings of
//! [`PipelineBuilder`](builder::PipelineBuilder). Validates all of them, generates and checks the plan, distributes the
//! modules over replicas and devices, and returns a [`Pipeline`](crate::Pipeline). No step runs here.
//!
//! - `chain`: stages in order, with types that the compiler checks at every boundary.
//! - `builder`: the settings of a pipeline, and its start.
//! - `validate`: the checks of stages and settings before anything starts.
//! - `ownership`: the owner of each parameter, and the parameters that cannot be trained as configured.
//! - `assemble`: all replicas of a complete chain.
//! - `assembly`: the stages of one replica on their devices.

pub(crate) mod assemble;
pub(crate) mod assembly;
pub(crate) mod builder;
pub(crate) mod chain;
pub(crate) mod ownership;
mod validate;
