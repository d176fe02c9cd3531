//! Building a pipeline: from a model's layers or stages and the user's settings to assembled replicas.
//!
//! Input: a [`chain`](chain::Chain) of stages, each with a device and an optimizer, or a row of layers; and the
//! settings of [`PipelineBuilder`](builder::PipelineBuilder). Output: a [`Pipeline`](crate::Pipeline), or a
//! `BuildError`. This folder owns everything that happens once before the first step. It partitions layers into stages,
//! validates settings, and generates and checks the plan (each worker's order of forward and backward passes). It finds
//! the owner of each tied parameter (the stage whose optimizer steps it), copies modules to devices, and connects the
//! stages of each replica by channels. It stores the devices of stages without their autodiff layer (`Device::inner`).
//! It must not run a step.
//!
//! The checks return a `BuildError`, whose messages are in `failure`. To validate a `LossScale` (from `update`) or a
//! `Watchdog` (from `failure`), they call its function `is_sound`. Each stage's activation recomputation (`Recompute`)
//! is configured here. After the build, `pipeline` keeps this setting and the plan.
//!
//! - `chain`: stages in order (`Chain`) with their settings (`StageConfig`: device, optimizer, learning rate,
//!   `Recompute`). The compiler checks that the types of neighbouring stages match, and that the chain ends with a loss
//!   (`EndsWithLoss`).
//! - `row`: a model as a row of layers (`Row`), which can be partitioned into any number of stages. Initialises each
//!   layer from its own seed, groups the layers of a stage (`Part`), names their parameters, and reassembles trained
//!   modules into one model.
//! - `halves`: blocks that may be split between two stages (`Halves`), and whether the layers of a row are blocks or
//!   halves of blocks (`Division`).
//! - `parameters`: visits and counts the parameters of a row's layers (`ParameterCount`), and applies a mapper of burn
//!   to new layers.
//! - `layered`: turns a model that is one struct (`LayeredModel`, with the types of its parts) into a row of layers
//!   (`ModelRow`). The layers `FirstLayer`, `BlockLayer` and `LastLayer` are stages whose forward passes and losses
//!   call the model's own functions.
//! - `cut`: the partition of a row of layers into stages (`Cut`, `CutError`), stored as the number of each stage's
//!   first layer (`starts`).
//! - `cost`: the costs of a row's layers (`Costs`, `LayerCost`), and partitions that balance these costs over the
//!   stages.
//! - `costing`: counts each layer's parameters and FLOPs, and optionally measures its time (`CostMethod`). `Costing`
//!   runs each layer's forward pass and, to measure times, its backward pass.
//! - `builder`: the setters of a pipeline's settings, such as schedule, number of micro-batches, replicas, precision
//!   and checkpoint.
//! - `variants`: variants of a configured pipeline (`Configured`) for a verification, such as a reference on one device
//!   and a plain loop on one thread. Also returns the settings that a verification reads.
//! - `validate`: checks the stages, the settings, the step counts of a checkpoint, and the plan.
//! - `supported`: checks that each device supports the dtypes of its stage and has kernels for the stage's operations.
//!   Returns the operations without a kernel, for which `assembly` logs warnings.
//! - `fallbacks`: the setting whether an operation without a Stageline kernel is an error or a warning (`Fallbacks`),
//!   and the search of `build` for such operations.
//! - `start`: `PipelineBuilder::build`: validates the settings, names the tensors (`Layout`), restores a checkpoint,
//!   assembles the stages and starts the workers. It logs how tensors travel between devices, and warns of settings
//!   that differ from the checkpoint's.
//! - `watched`: checks that other hosts are alive while modules are copied to their devices.
//! - `ownership`: the owner of each parameter (`Owners`): the first stage that trains a parameter owns it, and later
//!   stages share it. Finds tied parameters, batch norms and clipping optimizers that cannot be trained as configured.
//! - `assemble`: builds all data-parallel replicas (`Assembled`) from a complete chain (`Joined`), and connects their
//!   stages by channels and transfer routes.
//! - `assembly`: one replica under construction (`Assembly`). A stage's parameters are initialised on the caller's
//!   thread (`Unplaced`), copied to its device, and set from its part of a checkpoint (`Restored`).

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
