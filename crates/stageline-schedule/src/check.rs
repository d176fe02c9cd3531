//! Validates plans: every stage must run a forward and a backward pass on every micro-batch, and no worker may
//! deadlock.
//!
//! The input is a [`Plan`](crate::Plan) and a channel capacity (how many micro-batches a channel between two stages can
//! hold). [`check()`] returns a [`Checked`] plan with its global order of transfers, or a [`CheckError`]. The error
//! names the problem (such as a [`Deadlock`]), shows an [`Excerpt`] of the plan around it, and says how to fix it.
//! Deadlocks are found by a [`replay()`], which runs the plan on simulated workers and channels. Other modules build
//! timelines from the replay's [`Span`]s (actions with their start and end times). This module must not judge how fast
//! a plan is: whether a plan deadlocks does not depend on costs.

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
