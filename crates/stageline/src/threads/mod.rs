//! Threads, the bounded channels between them, and the waits of a pipeline.
//!
//! Every other folder takes threads and channels from here, so that a test can replace them: with the feature `shuttle`
//! the test decides which thread runs next. Must not know pipelines, stages or errors of training.
//!
//! - `real`: the system's threads and crossbeam's channels.
//! - `explored`: threads and channels under the test framework shuttle, with the same interface as `real`.
//! - `cores`: the number of cores that a worker's kernels use.
//! - `failure`: a panic or an error of a thread.

pub(crate) mod cores;
#[cfg(feature = "shuttle")]
mod explored;
pub(crate) mod failure;
#[cfg(not(feature = "shuttle"))]
mod real;

#[cfg(feature = "shuttle")]
pub(crate) use explored::*;
#[cfg(not(feature = "shuttle"))]
pub(crate) use real::*;

/// The reason why a wait on a channel ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The other end of the channel was dropped, or the stop signal was raised.
    Ended,
    /// The time limit of the wait passed.
    #[cfg_attr(feature = "shuttle", expect(dead_code, reason = "no time passes under shuttle"))]
    InVain,
}
