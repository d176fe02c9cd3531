//! Building a pipeline: from a model's layers or stages and the user's settings to assembled replicas.
//!
//! Input: a [`chain`](chain::Chain) of stages, each with a device and an optimizer, or a row of layers; and the
//! settings of [`PipelineBuilder`](builder::PipelineBuilder). Output: a [`Pipeline`](crate::Pipeline), or a
//! `BuildError`. This folder owns everything that happens once before the first step: cutting layers into stages,
//! validating settings, generating and checking the plan, finding the owner of each tied parameter (the stage whose
//! optimizer steps it), copying modules to devices, and joining the stages of each replica by channels. It must not run
//! a step.
//!
//! - `chain`: stages in order (`Chain`) with their settings (`StageConfig`), and types that the compiler checks at
//!   every boundary.
//! - `row`: a model as a row of layers (`Row`), which becomes a chain of any number of stages.
//! - `layered`: a model in one struct as a row of layers (`LayeredModel`, `ModelRow`).
//! - `cut`: the partition of a row of layers into stages (`Cut`, `CutError`).
//! - `cost`: counts or measures the parameters, FLOPs and times of the layers of a row (`Costs`, `LayerCost`).
//! - `builder`: the setters of a pipeline's settings, such as schedule, M, replicas, precision and checkpoint.
//! - `variants`: variants of a configured pipeline, such as the reference of a verification.
//! - `validate`: the checks of stages, settings and plan.
//! - `supported`: the check that devices compute in the types of their stages.
//! - `start`: `PipelineBuilder::build`: validates, assembles the stages and starts the workers.
//! - `ownership`: the owner of each parameter (`Owners`), and the parameters that cannot be trained as configured.
//! - `assemble`: assembles a complete chain (`Joined`) into all replicas, joined by channels and routes.
//! - `assembly`: the stages of one replica while they are assembled (`Assembly`), each copied to its device.

pub(crate) mod assemble;
pub(crate) mod assembly;
pub(crate) mod builder;
pub(crate) mod chain;
pub(crate) mod cost;
pub(crate) mod cut;
pub(crate) mod layered;
pub(crate) mod ownership;
pub(crate) mod row;
mod start;
mod supported;
mod validate;
mod variants;
