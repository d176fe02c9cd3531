//! Threads: starting them, the bounded channels between them, and the primitive waits on these channels.
//!
//! This folder wraps the operating system's threads, crossbeam's channels (`select!`) and rayon's pools. Every folder
//! that takes part in a step takes its threads and channels from here, so that a test can replace them. With the
//! feature `shuttle`, the test decides which thread runs next. Input: a thread's name and function, a channel's
//! capacity, a time limit. Output: join handles, senders and receivers, and why a wait ended ([`Over`]). This folder
//! must not know pipelines, stages or training errors: the stop signal that ends waits is in `failure`, where a wait
//! ends with `Stopped`.
//!
//! - `real`: threads of the operating system (`spawn`, `ends_within`), crossbeam's channels (`Sender`, `Receiver`,
//!   `bounded`) with waits that another channel ends (`receive_or`, `send_or`), and rayon's pools for kernels
//!   (`kernels`).
//! - `explored`: threads and channels under the test framework shuttle, with the same API as `real`. A channel is a
//!   queue (`Shared`) that counts its senders and receivers. All channels share one lock (`World`).
//! - `cores`: the number of CPU cores that a worker computes on (`Cores`), and the memory of the buffers that the
//!   threads on these cores keep (`KernelThreads`).
//! - `failure`: the failure of a stage on a thread (`Failure`): a panic, or an error that the stage returned
//!   (`BoxError`).

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
    /// The wait on a channel ended because the channel's other end was dropped or the pipeline stopped.
    Ended,
    /// The wait on a channel ended because its time limit passed before a message arrived.
    #[cfg_attr(feature = "shuttle", expect(dead_code, reason = "no time passes under shuttle"))]
    InVain,
}
