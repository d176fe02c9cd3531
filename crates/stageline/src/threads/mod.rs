//! Threads and the bounded channels between them: the system's and crossbeam's, or, with the feature `shuttle`, ones whose order
//! a test decides.

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

/// Why a wait was over before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The other end of the channel is gone, or the signal was given.
    Ended,
    /// Nothing came in time.
    #[cfg_attr(feature = "shuttle", expect(dead_code, reason = "no time passes there"))]
    InVain,
}
