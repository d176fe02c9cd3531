//! Failures: how the first panic, error or stall of any thread stops all workers and becomes one error of the step.
//!
//! Input: errors that workers and the caller raise, and the activities (computations, transfers and waits) that workers
//! report. Output: a [`StepError`](step_error::StepError) with stage, action and micro-batch, and waits that end with
//! `Stopped`. This folder owns the stop signal with its count of committed steps (which can no longer be rolled back).
//! It also owns every wait on a channel that watches the stop signal (polls, sends and receives), and the time that a
//! worker spends in these waits. It must not decide how training continues afterwards, and must not join threads:
//! `pipeline` does.
//!
//! The error messages about a pipeline's rejected settings (`BuildError`) and failed steps (`StepError`) are written
//! here, with the invalid values and the remedy. Their parts about batches are written in `model`, about checkpoints in
//! `state`, about devices and hosts in `device`, and about ledgers and the origins of NaN in `update`. An `Activity`
//! (an instruction, a wait, the optimizer step) is a type of `stageline-schedule`: here it says where a stage failed or
//! stalled, and `recording` stores it with its times in events.
//!
//! - `stop`: the stop signal (`Stop`) with the first error (`raise`, `take_error`), the error of a wait that the signal
//!   ends (`Stopped`), polls of a channel (`try_send`) and waits with a timeout (`receive_within`). Also each worker's
//!   sends and receives, with the time that it waited (`Waits`).
//! - `watchdog`: the time limits for a stall (`Watchdog`), the board of each worker's recent activities
//!   (`ProgressBoard`, `Place`), and the report of a stall (`Stall`, `Stalled`): how long no worker has begun anything
//!   (`still`), which stages are at work, and which wait for others (`WaitCause`). While `pipeline` waits, it asks for
//!   this report and acts on it.
//! - `activity`: the failure of a stage (`StageFailure`), the hosts whose logs may explain it, and the step or other
//!   work in which it happened (`During`: a step, or an evaluation, inference, snapshot, checkpoint or rehearsal after
//!   a number of steps).
//! - `step_error`: the errors of a step, an evaluation or a checkpoint (`StepError`): failed stage, stall, non-finite
//!   step, torn step (some stages have stepped their optimizers, others have not), lost stage or host.
//! - `build_error`: the errors of building a pipeline from its settings (`BuildError`), also made from the errors of
//!   parameter names (`NameError`).
//! - `refused_fallback`: the error for an operation that Stageline's kernels do not compute (`RefusedFallback`), which
//!   `build` or a stage's first forward pass returns, and the description of such an operation and its layer
//!   (`fallback_in_stage`).

pub(crate) mod activity;
pub(crate) mod build_error;
pub(crate) mod refused_fallback;
pub(crate) mod step_error;
pub(crate) mod stop;
pub(crate) mod watchdog;
