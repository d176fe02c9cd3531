//! The measurements of a step that really ran: the events of each worker, its memory, and the account of its time.
//!
//! The runtime fills these types while it trains, and logs and reports contain them. With the feature `serde` they can
//! be written to a file and read again.

mod account;
mod activity;
mod event;

pub use account::{Account, WorkerMemory};
pub use activity::{Activity, UnknownActivity, WaitCause};
pub use event::{Event, Held};
