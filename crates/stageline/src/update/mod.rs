//! The update: from the gradients of M micro-batches to one optimizer step of a stage, or none.
//!
//! Input: the gradients and loss weight of each micro-batch, and the settings of clipping, loss scale and precision.
//! Output: the stage's ledger (the count of its summed micro-batches) and gradient norms, the common verdict on the
//! step (step the optimizers, or skip it), and the stage's module after the optimizer step. This folder owns gradient
//! sums, gradient norms, the optimizer with its rollback, and the visitors and mappers of a module's parameters that
//! these need. It must not run forwards, send tensors to other stages, or start threads.
//!
//! - `gradient_sum`: the sum of a stage's gradients in ascending micro-batch order (`GradientSum`, `Half`).
//! - `ledger`: the check that every stage has summed the whole batch (`Ledger`).
//! - `flush`: the report of a stage at the end of a pass (`Outcome`), the totals of all stages (`Sums`), and the common
//!   verdict on the step (`Verdict`).
//! - `optimizer_step`: a stage's module with its optimizer (`Trained`), whose step is committed or rolled back.
//! - `state_memory`: the memory of optimizer states between steps, the device or the host (`OptimizerState`).
//! - `norm`, `clip`: the gradients' global norm, and clipping by that norm or by value (`Clip`, `Scaling`).
//! - `noise`: the gradient noise scale, from the gradients of micro-batches (`GradientNoise`, `NoiseAverage`).
//! - `loss_scale`: a fixed or dynamic scale of the loss for f16 (`LossScale`, `Scaler`).
//! - `finite`: the origin of a step's first NaN or infinity, and the reaction to it (`Culprit`, `OnNonFinite`).
//! - `precision`: mixed precision with f32 master weights: rounded copies of modules and inputs (`Precision`).
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
pub(crate) mod noise;
pub(crate) mod norm;
pub(crate) mod optimizer_step;
pub(crate) mod parameter_gradient;
pub(crate) mod precision;
pub(crate) mod state_memory;
pub(crate) mod take_ownership;
pub(crate) mod warmup_cosine;
