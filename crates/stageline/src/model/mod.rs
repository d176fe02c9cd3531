//! The model and its data: the traits that a user implements, and the values that flow through a pipeline.
//!
//! Takes a user's modules, batches and seeds; returns validated micro-batches with their loss weights. Must not know
//! workers, channels or plans.
//!
//! - `stage`: the traits of a stage and of the last stage, which computes the loss.
//! - `payload`: the values that may cross a stage boundary.
//! - `batch`: a batch and its split into micro-batches.
//! - `micro_batches`: the micro-batches of a batch with their validated loss weights and sample numbers.
//! - `batch_error`: the reasons why a batch is rejected.
//! - `loss_weight`: the divisor of a loss, term by term.
//! - `effective_batch`: samples per step, and the learning rates and step counts that follow from them.
//! - `replica`: the number of a data-parallel replica.

pub(crate) mod batch;
pub(crate) mod batch_error;
pub(crate) mod effective_batch;
pub(crate) mod loss_weight;
pub(crate) mod micro_batches;
pub(crate) mod payload;
pub(crate) mod replica;
pub(crate) mod stage;
