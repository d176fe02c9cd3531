//! The measurements of a step that really ran: the events of each worker, its memory in use, and the breakdown of its
//! time.
//!
//! Input: the times, waits, bytes and memory that the runtime of `stageline` measures while it trains. Output: the same
//! figures as types that logs and reports contain. This folder must not read a clock, simulate or predict. With the
//! feature `serde` these types can be written to a file and read again.

mod account;
mod activity;
mod event;

pub use account::{Account, WorkerMemory};
pub use activity::{Activity, UnknownActivity, WaitCause};
pub use event::{Event, Held};
