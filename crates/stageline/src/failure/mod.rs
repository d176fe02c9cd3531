//! Failures: how the first panic, error or stall of any thread stops all workers and becomes one error of the step.
//!
//! Input: errors that workers and the caller raise, and the activities that workers report. Output: a
//! [`StepError`](step_error::StepError) with stage, action and micro-batch, and waits that end with `Stopped`. This
//! folder owns the stop signal with its count of committed steps (which can no longer be rolled back), and every wait
//! on a channel that also watches the stop signal: polls, sends and receives, and the time that a worker waited in
//! them. It must not decide how training continues afterwards, and must not join threads: `pipeline` does.
//!
//! The messages of a pipeline's rejected settings (`BuildError`) and of failed steps (`StepError`) are worded here,
//! with the values and the remedy. Their parts about batches are worded in `model`, about checkpoints in `state`, about
//! devices and hosts in `device`, and about ledgers and culprits in `update`. An `Activity` (an instruction, a wait,
//! the optimizer step) is a type of `stageline-schedule`: here it says where a stage failed or stalled, and `recording`
//! keeps it with its times in events.
//!
//! - `stop`: the stop signal (`Stop`) with the first error (`raise`, `take_error`), the error of a wait that the signal
//!   ends (`Stopped`), polls of a channel (`try_send`) and waits with a time limit (`receive_within`); and each
//!   worker's sends and receives, with the time waited (`Waits`).
//! - `watchdog`: the time limits for a stall (`Watchdog`), the board of each worker's recent activities
//!   (`ProgressBoard`, `Place`), and the report of a stall (`Stall`, `Stalled`): how long no worker has begun anything
//!   (`still`), who is at work, and who waits for whom (`WaitCause`). While `pipeline` waits, it asks for this report
//!   and acts on it.
//! - `activity`: the failure of a stage (`StageFailure`), the hosts whose logs may explain it, and the words for the
//!   pass when it happened (`During`: a step, or after so many steps an evaluation, an inference, a snapshot, a
//!   checkpoint or a rehearsal).
//! - `step_error`: the errors of a step, an evaluation or a checkpoint (`StepError`): failed stage, stall, non-finite
//!   step, torn step, lost stage or host.
//! - `build_error`: the errors of building a pipeline from its settings (`BuildError`), also made from the errors of
//!   parameter names (`NameError`).
//! - `refused_fallback`: the error of an operation that Stageline's kernels do not compute (`RefusedFallback`), which
//!   `build` or a stage's first forward pass returns, and the words for such an operation and its layer
//!   (`fallback_in_stage`).

pub(crate) mod activity;
pub(crate) mod build_error;
pub(crate) mod refused_fallback;
pub(crate) mod step_error;
pub(crate) mod stop;
pub(crate) mod watchdog;
