//! Building a pipeline: from a model's layers or stages and the user's settings to assembled replicas.
//!
//! Input: a [`chain`](chain::Chain) of stages, each with a device and an optimizer, or a row of layers; and the
//! settings of [`PipelineBuilder`](builder::PipelineBuilder). Output: a [`Pipeline`](crate::Pipeline), or a
//! `BuildError`. This folder owns everything that happens once before the first step. It cuts layers into stages,
//! validates settings, and generates and checks the plan. It finds the owner of each tied parameter (the stage whose
//! optimizer steps it), copies modules to devices, and joins the stages of each replica by channels. It stores the
//! devices of stages without their autodiff layer (`Device::inner`). It must not run a step.
//!
//! The checks return a `BuildError`, whose texts are in `failure`. They use the functions `is_sound` of `LossScale` in
//! `update` and of `Watchdog` in `failure`, which say whether the values of these types are valid. Each stage's
//! recomputation (`Recompute`) is set here; `pipeline` keeps it and the plan afterwards.
//!
//! - `chain`: stages in order (`Chain`) with their settings (`StageConfig`: device, optimizer, learning rate,
//!   `Recompute`), and types that the compiler checks at every boundary (`EndsWithLoss`).
//! - `row`: a model as a row of layers (`Row`), which becomes a chain of any number of stages: draws each layer from
//!   its seed, joins the layers of a stage (`Part`), names their parameters, and joins trained modules to one model
//!   again.
//! - `halves`: blocks that a cut may divide in two (`Halves`), and the layers of a row's blocks (`Division`).
//! - `parameters`: visits and counts the parameters of a row's layers (`ParameterCount`), and passes new layers through
//!   a mapper of burn.
//! - `layered`: a model in one struct as a row of layers (`LayeredModel` with the types of its parts, `ModelRow`):
//!   `FirstLayer`, `BlockLayer` and `LastLayer` are stages whose forward passes and losses call the model's own
//!   functions.
//! - `cut`: the partition of a row of layers into stages (`Cut`, `CutError`), as the first layer of each stage
//!   (`starts`).
//! - `cost`: the costs of a row's layers (`Costs`, `LayerCost`), and the cuts that balance them.
//! - `costing`: counts or measures the parameters, FLOPs and times of the layers of a row: `Costing` runs each layer
//!   forward and, to measure times, backward (`CostMethod`).
//! - `builder`: the setters of a pipeline's settings, such as schedule, M, replicas, precision and checkpoint.
//! - `variants`: variants of a configured pipeline (`Configured`) for a verification, such as the reference on one
//!   device and the plain loop on one thread; and the settings that a verification reads.
//! - `validate`: the checks of stages, settings, a checkpoint's progress, and plan.
//! - `supported`: the checks that devices compute in the element types of their stages, and have kernels for their
//!   operations. It returns the operations without a kernel, for the warnings of `assembly`.
//! - `fallbacks`: the setting whether an operation without a kernel is refused (`Fallbacks`), and the search of `build`
//!   for such operations.
//! - `start`: `PipelineBuilder::build`: validates, names the tensors (`Layout`), restores a checkpoint, assembles the
//!   stages and starts the workers. It logs the paths of tensors between devices, and warns of settings that differ
//!   from the checkpoint's.
//! - `watched`: the watch over other hosts while modules are copied to their devices.
//! - `ownership`: the owner of each parameter (`Owners`): each stage claims its parameters, and a later one shares
//!   them. Finds parameters, batch norms and clipping optimizers that cannot be trained as configured.
//! - `assemble`: assembles a complete chain (`Joined`) into all replicas (`Assembled`), joined by channels and routes.
//! - `assembly`: the stages of one replica while they are assembled (`Assembly`). A stage's parameters are initialised
//!   on the caller's thread (`Unplaced`), copied to its device, and set from its part of a checkpoint (`Restored`).

pub(crate) mod assemble;
pub(crate) mod assembly;
pub(crate) mod builder;
pub(crate) mod chain;
pub(crate) mod cost;
mod costing;
pub(crate) mod cut;
pub(crate) mod fallbacks;
pub(crate) mod halves;
pub(crate) mod layered;
pub(crate) mod ownership;
pub(crate) mod parameters;
pub(crate) mod row;
mod start;
mod supported;
mod validate;
pub(crate) mod variants;
mod watched;
