//! Failures: how a worker's panic or error stops all workers and becomes one error of the step.
//!
//! Takes panics, errors and stalls. Ends every wait of every worker, and names the first failure with its stage, action
//! and micro-batch. Does not decide what happens to the training afterwards.
//!
//! - `stop`: the stop signal, which every wait in the pipeline watches.
//! - `watchdog`: the time limits for a stalled pipeline, and the report of what each worker does.
//! - `activity`: what a stage was doing when it failed, and what it was waiting for.
//! - `step_error`: the errors of a step, an evaluation or a checkpoint.
//! - `build_error`: the errors of building a pipeline.

pub(crate) mod activity;
pub(crate) mod build_error;
pub(crate) mod step_error;
pub(crate) mod stop;
pub(crate) mod watchdog;
