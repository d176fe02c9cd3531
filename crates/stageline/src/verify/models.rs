//! The closures that build the pipelines of a verification: the verified one, and its reference on one device.

use crate::build::builder::PipelineBuilder;
use crate::model::payload::Payload;

/// The closures that build the two pipelines of a verification: the verified one, and the reference on one device.
pub(super) struct Models<'a, In: Payload, Out: Payload, Target: Payload> {
    pub(super) build: &'a Build<'a, In, Out, Target>,
    /// The closure that builds the undivided model for the reference run on one device. `None` if the reference trains
    /// the verified pipeline's own stages.
    pub(super) uncut: Option<&'a Build<'a, In, Out, Target>>,
    /// Whether the verified run is a pipeline; false if it is a training loop of the user's own.
    pub(super) is_pipeline: bool,
}

/// A closure that builds a pipeline for a verification. It must give the same initial parameters on every call.
/// Otherwise gradients differ for that reason alone, and the verification reports a difference, most often with the
/// cause [`NotSeeded`](super::cause::Cause::NotSeeded).
pub(super) type Build<'a, In, Out, Target> = dyn Fn() -> PipelineBuilder<In, Out, Target> + 'a;
