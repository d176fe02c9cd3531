//! Failures: how a worker's panic or error stops all workers and becomes one error of the step.
//!
//! Takes panics, errors and waits without progress. Ends every wait of every worker, and names the first failure with its stage,
//! action and micro-batch. Does not decide what happens to the training afterwards.

pub(crate) mod activity;
pub(crate) mod build_error;
pub(crate) mod step_error;
pub(crate) mod stop;
pub(crate) mod watchdog;
