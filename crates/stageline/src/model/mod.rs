//! The model and its data: the traits that a user implements, and batches as they are cut for a step.
//!
//! Input: a user's modules, and batches of input and target tensors. Output: validated micro-batches with their loss
//! weights and sample numbers. This folder owns the definition of what may be a stage or may cross a boundary, slicing
//! and concatenating along dimension 0, and the arithmetic of loss weights and batch sizes. It must not know workers,
//! channels, devices of stages, or plans.
//!
//! - `stage`: the traits of a stage (`Stage`) and of the last stage, which computes the loss (`LossStage`).
//! - `payload`: the values that may cross a stage boundary (`Payload`), functions on their tensors (`PayloadMapper`),
//!   and the part of a batch that several stages read (`SharedInput`).
//! - `batch`: the input and targets of a step (`Batch`) and their split into micro-batches.
//! - `micro_batches`: the micro-batches of a batch (`MicroBatches`) with their loss weights (`Weights`) and shapes.
//! - `batch_error`: the reasons why a batch is rejected (`BatchError`).
//! - `loss_weight`: the divisor of a loss, term by term (`Weight`).
//! - `scoring`: the loss weight of targets and the names of metrics (`Scoring`).
//! - `segments`: runs a row of blocks in segments that the backward recomputes.
//! - `concatenate`: joins the outputs of all micro-batches into one output.
//! - `effective_batch`: samples per step, and the learning rates and step counts that follow from them
//!   (`EffectiveBatch`).
//! - `replica`: the number of a data-parallel replica, and the names of its stages in messages (`Replica`).

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
