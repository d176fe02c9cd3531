//! Failures: how a worker's panic or error stops all workers and becomes one error of the step.
//!
//! Takes panics, errors and stalls. Ends every wait of every worker, and names the first failure with its stage, action
//! and micro-batch. Does not decide what happens to the training afterwards.
//!
//! - `stop`: the stop signal (`Stop`), which every wait on a channel watches, and each worker's access to it (`Waits`).
//! - `watchdog`: the time limits for a stalled pipeline (`Watchdog`), and the report of what each worker does
//!   (`Stall`).
//! - `activity`: what a stage was doing when it failed (`Activity`, `StageFailure`), and for whom a stage waits
//!   (`WaitCause`).
//! - `step_error`: the errors of a step, an evaluation or a checkpoint (`StepError`).
//! - `build_error`: the errors of building a pipeline from its settings (`BuildError`).

pub(crate) mod activity;
pub(crate) mod build_error;
pub(crate) mod step_error;
pub(crate) mod stop;
pub(crate) mod watchdog;
