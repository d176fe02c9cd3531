//! Checks: accept a plan only if every micro-batch is trained on and no worker can deadlock.
//!
//! The input is a [`Plan`](crate::Plan) and a channel capacity (the number of micro-batches that a channel between two
//! stages can store). [`check()`] returns a [`Checked`] plan with its global order of transfers, or a [`CheckError`].
//! The error names the fault (such as a [`Deadlock`]), shows an [`Excerpt`] of the plan around it, and says how to fix
//! it. The proof is one [`replay()`] of the plan on simulated workers and channels. Other modules use the replay's
//! [`Span`]s of time for timelines. This module must not judge how fast a plan is: whether a plan completes does not
//! depend on costs.

mod capacity;
mod checked;
mod deadlock;
mod error;
mod excerpt;
mod links;
mod ready;
mod replay;
mod sequence;
mod streams;
mod validate;

pub use checked::Checked;
pub use deadlock::{Blocked, Deadlock};
pub use error::CheckError;
pub use excerpt::Excerpt;
pub(crate) use links::Links;
pub(crate) use ready::Time;
pub use replay::Span;
pub(crate) use replay::{Observer, replay};
pub use validate::check;
