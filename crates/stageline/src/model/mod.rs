//! The model and its data: the traits that a user implements, and batches that are split into micro-batches for a step.
//!
//! Input: a user's modules, and batches of input and target tensors. Output: validated micro-batches with their loss
//! weights and sample indices. This folder owns the definition of what may be a stage or may cross a boundary, slicing
//! and concatenating along dimension 0, and the arithmetic of loss weights and batch sizes. It must not know workers,
//! channels, the devices of stages, or plans.
//!
//! A function that is applied to every tensor of a payload is a `PayloadMapper`, with one method each for float, int
//! and bool tensors. The mappers here slice, join, replace, measure and count tensors. The mappers of `transfer` move,
//! track or detach tensors, and the mappers of `update` cast floats or look for NaN. `LossStage::metrics` returns a
//! micro-batch's sums, which `runner` collects, `update` adds up and `pipeline` divides.
//!
//! - `stage`: the traits of a stage (`Stage`) and of the last stage, which computes the loss (`LossStage`: loss,
//!   weight, metrics); also of tuples and `Vec`s of stages, whose elements run as numbered layers (`in_layers`).
//! - `payload`: the values that may cross a stage boundary (`Payload`, the macro `payload!`), functions on their
//!   tensors (`PayloadMapper`), the part of a batch that several stages read (`SharedInput`), and a tensor's size in
//!   bytes (`bytes_of`).
//! - `batch`: the input and targets of a step (`Batch`, as whole tensors or split by the caller), their size in bytes,
//!   and their split into micro-batches (`SliceRows`).
//! - `micro_batches`: the micro-batches of a batch (`MicroBatches`), their loss weights and sample indices (`Weights`,
//!   which is divided among the replicas here), and their shapes and rows (`Shapes`).
//! - `batch_error`: why a batch is rejected (`BatchError`), with the error messages for one or several replicas.
//! - `loss_weight`: the divisor of a loss, one number for each loss term (`Weight`), and the division of loss sums by
//!   it.
//! - `scoring`: the loss weight of targets and the names of metrics (`Scoring`).
//! - `segments`: runs consecutive blocks in segments that the backward pass recomputes (`Run`, `Take`, `Put`).
//! - `concatenate`: joins the outputs of all micro-batches into one output (`Join`).
//! - `effective_batch`: samples per step, and the learning rates and step counts that follow from them
//!   (`EffectiveBatch`). Also the warning that the batch size differs from the one that the schedule was chosen for
//!   (`BatchChange`).
//! - `replica`: the index of a data-parallel replica, the names of its stages in messages (`Replica`), and one stage of
//!   one replica (`ReplicaStage`).

pub(crate) mod batch;
pub(crate) mod batch_error;
pub(crate) mod concatenate;
pub(crate) mod effective_batch;
pub(crate) mod loss_weight;
pub(crate) mod micro_batches;
pub(crate) mod payload;
pub(crate) mod replica;
pub(crate) mod scoring;
mod segments;
pub(crate) mod stage;
