//! The update: from the gradients of M micro-batches to one optimizer step.
//!
//! Sums gradients in ascending micro-batch order, checks the ledger, scales, clips, and steps each stage's optimizer,
//! or skips the step on all stages. The learning rate schedule, mixed precision and the health of parameters are here
//! too. Starts no thread.
//!
//! - `gradient_sum`: the running sum of gradients over the micro-batches.
//! - `ledger`: the check that every stage has summed the whole batch.
//! - `flush`: the reports of all stages at the end of a step, and the common verdict on it.
//! - `optimizer_step`: a stage's module with its optimizer, whose step can be rolled back.
//! - `norm`, `clip`, `loss_scale`, `finite`: the global norm, clipping, loss scaling, and non-finite results.
//! - `precision`: mixed precision with f32 master weights.
//! - `health`, `moments`, `parameter_gradient`: reports on single parameters.
//! - `warmup_cosine`: a learning rate schedule.
//! - `take_ownership`: copies of parameters in memory that the calling thread allocates.

pub(crate) mod clip;
pub(crate) mod finite;
pub(crate) mod flush;
pub(crate) mod gradient_sum;
pub(crate) mod health;
pub(crate) mod ledger;
pub(crate) mod loss_scale;
pub(crate) mod moments;
pub(crate) mod norm;
pub(crate) mod optimizer_step;
pub(crate) mod parameter_gradient;
pub(crate) mod precision;
pub(crate) mod take_ownership;
pub(crate) mod warmup_cosine;
