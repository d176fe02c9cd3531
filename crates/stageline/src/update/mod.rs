//! The update: from the gradients of M micro-batches to one optimizer step.
//!
//! Sums each stage's gradients in ascending micro-batch order, checks that every stage has summed the whole batch,
//! unscales and clips the gradients, and steps each stage's optimizer, or skips the step on all stages. The learning
//! rate schedule, mixed precision and reports on parameters are here too. Nothing here starts a thread.
//!
//! - `gradient_sum`: the running sum of a stage's gradients over the micro-batches (`GradientSum`).
//! - `ledger`: the check that every stage has summed the whole batch (`Ledger`).
//! - `flush`: the reports of all stages at the end of a step (`Outcome`), and the common verdict on the step
//!   (`Verdict`).
//! - `optimizer_step`: a stage's module with its optimizer (`Trained`), whose step can be committed or rolled back.
//! - `norm`, `clip`: the gradients' global norm, and clipping by that norm or by value (`Clip`).
//! - `loss_scale`: a fixed or dynamic scale of the loss for f16 (`LossScale`).
//! - `finite`: the search for the first NaN or infinity of a step, and the reaction to it (`Culprit`, `OnNonFinite`).
//! - `precision`: mixed precision with f32 master weights (`Precision`).
//! - `health`, `moments`, `parameter_gradient`: reports on single parameters: their health in a step, the optimizer's
//!   second moments, and their gradients.
//! - `warmup_cosine`: a learning rate schedule with a warm-up and a cosine decay (`WarmupCosine`).
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
