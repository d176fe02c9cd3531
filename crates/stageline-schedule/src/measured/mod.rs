//! The measurements of an executed (not simulated) step: each worker's timed events, allocated memory, and time
//! breakdown.
//!
//! Input: the times, waits, bytes and memory that the runtime of `stageline` measures while it trains. Output: the
//! types that hold these measurements in logs and reports. This folder must not read a clock, simulate or predict. With
//! the feature `serde`, the types can be serialised and deserialised.

mod account;
mod activity;
mod event;

pub use account::{Account, WorkerMemory};
pub use activity::{Activity, UnknownActivity, WaitCause};
pub use event::{Event, Held};
