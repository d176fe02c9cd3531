//! The model and its data: what a user implements, and what flows through a pipeline.
//!
//! Defines stages and loss stages, the payloads that cross between stages, batches with their micro-batches, and the weight of a loss.
//! Knows neither threads nor plans.

pub(crate) mod batch;
pub(crate) mod effective_batch;
pub(crate) mod loss_weight;
pub(crate) mod payload;
pub(crate) mod replica;
pub(crate) mod seed;
pub(crate) mod stage;
