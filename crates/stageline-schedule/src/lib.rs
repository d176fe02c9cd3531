//! Pipeline schedules as data.
//!
//! A schedule is not code that runs but a [`Plan`] that is read: for every worker, the list of [`Action`]s it takes.
//! Generators write plans, [`check()`] refuses those that cannot run, [`simulate()`] says what they would cost, and one
//! interpreter elsewhere runs any of them. This crate is pure: no tensors, no threads, no clock.
//!
//! # Layout
//!
//! In the order in which data flows:
//!
//! - [`action`]: what one stage does to one micro-batch, `2F0` in text.
//! - [`plan`]: each worker's list of actions; `placement`: which worker has which stage; `csv` writes and reads plans,
//!   PyTorch's too, `lowered` those with transfers.
//! - [`schedule`]: the trait of generators; `schedules`: one generator a file, and [`SCHEDULES`], the list of them.
//! - [`lower`](mod@lower): computes, with the sends and receives between them put in.
//! - `replay`: one run of a plan, to its end or to a [`Deadlock`] with its reason.
//! - [`check`](mod@check): complete, in order, and free of deadlock at a channel capacity; and the order of transfers.
//!   `streams`: that order, as devices see it; `excerpt`: the plan around what is wrong.
//! - `costs`, [`simulate`](mod@simulate): a checked plan and what everything takes become a timeline; `idle`: why workers
//!   wait in it; `memory`: what they hold; `svg`: its picture.
//! - `bound`: what no plan can beat; `automatic`, `search`: the plan that comes nearest to it.
//! - [`balance`](mod@balance): where to cut a row of layers into stages.
//!
//! ```
//! use stageline_schedule::{Costs, OneFOneB, Schedule, check, simulate};
//!
//! let plan = OneFOneB.plan(4, 8)?;
//! let checked = check(plan, 1)?;
//! let timeline = simulate(&checked, &Costs::uniform(4, 1.0, 2.0));
//! assert_eq!(timeline.bubble(), 3.0 / 11.0); // (P-1)/(M+P-1)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod action;
mod automatic;
pub mod balance;
mod bound;
pub mod check;
pub mod lower;
pub mod plan;
pub mod schedule;
pub mod simulate;

mod check_error;
mod costs;
mod csv;
mod csv_error;
mod deadlock;
mod excerpt;
mod idle;
mod lowered;
mod memory;
mod placement;
mod progress;
mod ready;
mod replay;
mod schedules;
mod search;
mod streams;
mod svg;

pub use action::{Action, Compute, ParseActionError};
pub use balance::{BalanceError, balance};
pub use bound::lower_bound;
pub use check::{Checked, check};
pub use check_error::CheckError;
pub use costs::{Costs, StageCost, Transfers};
pub use csv_error::{CellError, ParsePlanError};
pub use deadlock::{Blocked, Deadlock};
pub use excerpt::Excerpt;
pub use idle::Idle;
pub use lower::{Carried, Instruction, Transfer, lower};
pub use memory::{Memory, StageMemory};
pub use placement::Placement;
pub use plan::Plan;
pub use replay::Span;
pub use schedule::{Schedule, ScheduleError};
pub use schedules::*;
pub use search::{Best, SearchError, best};
pub use simulate::{Timeline, simulate};
