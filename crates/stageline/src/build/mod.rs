//! Builds a pipeline: from stages and settings to started threads.
//!
//! Takes a [`chain`](chain::Chain) of stages, each with a device and an optimizer, and the settings of
//! [`PipelineBuilder`](builder::PipelineBuilder). Validates all of them, generates and checks the plan, distributes the
//! modules over replicas and devices, and returns a [`Pipeline`](crate::Pipeline). No step runs here.
//!
//! - `chain`: stages in order (`Chain`) with their settings (`StageConfig`), and types that the compiler checks at
//!   every boundary.
//! - `row`: a model as a row of layers (`Row`), which becomes a chain of any number of stages.
//! - `cut`: the partition of a row of layers into stages (`Cut`).
//! - `cost`: parameters, FLOPs and times of the layers of a row, by which it is cut (`Costs`).
//! - `builder`: the settings of a pipeline (`PipelineBuilder`), such as the schedule, M, replicas, precision and
//!   checkpoints.
//! - `validate`: `PipelineBuilder::build`: the checks of stages, settings and plan, and the start of the pipeline.
//! - `ownership`: the owner of each parameter (`Owners`), and the parameters that cannot be trained as configured.
//! - `assemble`: the assembly of a complete chain (`Joined`) into all its replicas, joined by channels.
//! - `assembly`: the stages of one replica (`Assembly`), each copied to its device.

pub(crate) mod assemble;
pub(crate) mod assembly;
pub(crate) mod builder;
pub(crate) mod chain;
pub(crate) mod cost;
pub(crate) mod cut;
pub(crate) mod ownership;
pub(crate) mod row;
mod validate;
