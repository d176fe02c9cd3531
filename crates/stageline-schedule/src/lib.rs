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
//!   PyTorch's too.
//! - [`schedule`]: the trait of generators, with one generator a file; [`SCHEDULES`] is the list of them. `v_shape` and
//!   `building_block` are what those with chunks in a V share.
//! - [`lower`](mod@lower): computes, with the sends and receives between them put in.
//! - `replay`: one run of a plan, to its end or to a [`Deadlock`] with its reason.
//! - [`check`](mod@check): complete, in order, and free of deadlock at a channel capacity; and the order of transfers.
//!   `excerpt`: the plan around what is wrong.
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

mod building_block;
mod catalog;
mod check_error;
mod costs;
mod csv;
mod deadlock;
mod dualpipe_v;
mod eager_one_f_one_b;
mod excerpt;
mod gpipe;
mod idle;
mod interleaved;
mod looped_breadth_first;
mod memory;
mod one_f_one_b;
mod placement;
mod progress;
mod ready;
mod replay;
mod search;
mod svg;
mod v_half;
mod v_min;
mod v_shape;
mod zb_h1;
mod zb_h2;
mod zb_v;

pub use action::{Action, Compute, ParseActionError};
pub use balance::{BalanceError, balance};
pub use bound::lower_bound;
pub use catalog::{SCHEDULES, UnknownSchedule, schedule_named};
pub use check::{Checked, check};
pub use check_error::CheckError;
pub use costs::{Costs, StageCost, Transfers};
pub use csv::ParsePlanError;
pub use deadlock::{Blocked, Deadlock};
pub use dualpipe_v::DualPipeV;
pub use eager_one_f_one_b::EagerOneFOneB;
pub use excerpt::Excerpt;
pub use gpipe::GPipe;
pub use idle::Idle;
pub use interleaved::Interleaved;
pub use looped_breadth_first::LoopedBreadthFirst;
pub use lower::{Carried, Instruction, Transfer, lower};
pub use memory::{Memory, StageMemory};
pub use one_f_one_b::OneFOneB;
pub use placement::Placement;
pub use plan::Plan;
pub use replay::Span;
pub use schedule::{Schedule, ScheduleError};
pub use search::{Best, SearchError, best};
pub use simulate::{Timeline, simulate};
pub use v_half::VHalf;
pub use v_min::VMin;
pub use zb_h1::ZbH1;
pub use zb_h2::ZbH2;
pub use zb_v::ZbV;
