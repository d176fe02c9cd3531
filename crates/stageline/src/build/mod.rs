//! Builds a pipeline: from stages and settings to started threads.
//!
//! Takes a [`chain`](chain::Chain) of stages, each with a device and an optimizer, and the settings of
//! [`PipelineBuilder`](builder::PipelineBuilder). Validates all of them, generates and checks the plan, distributes the
//! modules over replicas and devices, and returns a [`Pipeline`](crate::Pipeline). No step runs here.
//!
//! - `chain`: stages in order, with types that the compiler checks at every boundary.
//! - `builder`: the settings of a pipeline.
//! - `validate`: `build` itself: the checks of stages, settings and plan, and the start of the pipeline.
//! - `ownership`: the owner of each parameter, and the parameters that cannot be trained as configured.
//! - `assemble`: the assembly of a complete chain into all its replicas.
//! - `assembly`: the stages of one replica, each placed on its device.

pub(crate) mod assemble;
pub(crate) mod assembly;
pub(crate) mod builder;
pub(crate) mod chain;
pub(crate) mod ownership;
mod validate;
