//! Failures: how the first panic, error or stall of any thread stops all workers and becomes one error of the step.
//!
//! Input: errors that workers and the caller raise, and the activities that workers report. Output: a
//! [`StepError`](step_error::StepError) with stage, action and micro-batch, and waits that end with `Stopped`. This
//! folder owns the stop signal with its count of committed steps (which are not rolled back any more), and every wait
//! on a channel that also watches the stop signal: polls, sends and receives, and the time that a worker waited in
//! them. It must not decide what happens to the training afterwards, and must not join threads.
//!
//! - `stop`: the stop signal (`Stop`) with the first error, and each worker's sends and receives (`Waits`).
//! - `watchdog`: the time limits for a stall (`Watchdog`), the board of each worker's recent activities
//!   (`ProgressBoard`), and the report of a stall (`Stall`).
//! - `activity`: what a stage was doing when it failed (`Activity`, `During`, `StageFailure`), and for whom a stage
//!   waits (`WaitCause`).
//! - `step_error`: the errors of a step, an evaluation or a checkpoint (`StepError`).
//! - `build_error`: the errors of building a pipeline from its settings (`BuildError`).

pub(crate) mod activity;
pub(crate) mod build_error;
pub(crate) mod step_error;
pub(crate) mod stop;
pub(crate) mod watchdog;
