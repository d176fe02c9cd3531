//! The update: turns the gradients of M micro-batches into one optimizer step of a stage, or skips the step.
//!
//! Input: the gradients and loss weight of each micro-batch, and the settings of clipping, loss scale and precision.
//! Output: the stage's ledger (the count of its summed micro-batches) and gradient norms, the common verdict on the
//! step (step the optimizers, or skip the step), and the stage's module after the optimizer step. This folder owns
//! gradient sums, gradient norms, the optimizer with its rollback, and the visitors and mappers of a module's
//! parameters for these purposes. It must not run forward passes, send tensors to other stages, or start threads: the
//! runner calls it for each stage, and `pipeline` for the sums of all stages.
//!
//! - `gradient_sum`: the sum of a stage's gradients in ascending micro-batch order (`GradientSum`).
//! - `micro_batch_gradients`: the gradients of one micro-batch, with the weight gradients that a split backward pass
//!   defers (`MicroBatchGradients`).
//! - `ledger`: the check that every stage has summed the whole batch (`Ledger`, `LedgerError`).
//! - `flush`: the settings of a flush (`FlushConfig`), the report of a stage at the end of a pass (`Outcome`), the
//!   totals of all stages (`Sums`: losses, metrics, norms), and the common verdict on the step (`Verdict`: `Step`,
//!   `Show` the gradients, `Rehearse` or `Skip`). The settings also select the steps that measure health (training
//!   statistics of parameters) and noise.
//! - `optimizer_step`: a stage's module with its optimizer and learning rate (`Trained`), whose step (`Made`) is
//!   committed or rolled back (`Before`, `Rollback`), and whose state is read and restored.
//! - `state_memory`: where optimizer states are stored between steps, on the device or the host (`OptimizerState`,
//!   `PlacedState`, `KeptState`). Copies a state as bytes (`HostState`), and panics if a float tensor does not have the
//!   device's default float dtype.
//! - `norm`: the squared norm of each gradient (`SquaredNorms`), read with the losses in one request to the device
//!   (`read_many`).
//! - `clip`: clipping by the global norm or by value (`Clip`), and the factor or bound to apply (`Scaling`).
//! - `noise`: the gradient noise scale, from the gradients of micro-batches (`GradientNoise`, `NoiseReport`,
//!   `NoiseAverage`).
//! - `loss_scale`: a fixed or dynamic scale of the loss for f16 (`LossScale`, `DynamicLossScale`, `Scaler`), which
//!   grows and backs off.
//! - `not_finite`: the check for NaN and infinity (`Soundness`), the origin of a step's first NaN or infinity
//!   (`Culprit`, `Origin`), and the policy for such a step, stop or skip (`OnNonFinite`). `runner` finds the candidates
//!   for the origin.
//! - `precision`: mixed precision with f32 master weights (`Precision`): casts modules (`Rounding`) and inputs to bf16
//!   or f16. Any other precision name is an error (`PrecisionError`).
//! - `health`: the health of each parameter in a step: norms, zeros, `Histogram` (`ParameterHealth`, `Examination`).
//! - `moments`, `parameter_gradient`: the optimizer's second moments of each parameter, and the gradients that are
//!   returned to the caller (`ParameterGradient`).
//! - `warmup_decay`: a learning-rate schedule with a warm-up and a decay (`WarmupDecay`, `Decay`, `WarmupDecayError`).
//! - `take_ownership`: copies parameters to memory that the calling thread allocates.

pub(crate) mod clip;
pub(crate) mod flush;
pub(crate) mod gradient_sum;
pub(crate) mod health;
pub(crate) mod ledger;
pub(crate) mod loss_scale;
pub(crate) mod micro_batch_gradients;
pub(crate) mod moments;
pub(crate) mod noise;
pub(crate) mod norm;
pub(crate) mod not_finite;
pub(crate) mod optimizer_step;
pub(crate) mod parameter_gradient;
pub(crate) mod precision;
pub(crate) mod state_memory;
pub(crate) mod take_ownership;
pub(crate) mod warmup_decay;
