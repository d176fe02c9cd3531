//! The update: from the gradients of M micro-batches to one optimizer step.
//!
//! Sums gradients in ascending micro-batch order, checks the ledger, scales, clips, and steps each stage's optimizer, or skips the step
//! on all stages. Also holds the learning rate, the precision and the health of parameters. Starts no thread.

pub(crate) mod clip;
pub(crate) mod finite;
pub(crate) mod flush;
pub(crate) mod gradient_sum;
pub(crate) mod health;
pub(crate) mod ledger;
pub(crate) mod loss_scale;
pub(crate) mod moments;
pub(crate) mod norm;
pub(crate) mod parameter_gradient;
pub(crate) mod precision;
pub(crate) mod take_ownership;
pub(crate) mod warmup_cosine;
