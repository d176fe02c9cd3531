//! Pipeline schedules as data: generate, check, simulate and search plans.
//!
//! A [`Plan`] lists, for every worker, the [`Action`]s (forward and backward passes) that the worker runs in one step.
//! A [`Schedule`], such as 1F1B, generates plans. [`check()`] rejects plans that are incomplete or deadlock, and
//! [`simulate()`] gives the timeline of a plan. The crate `stageline` runs any plan that passed the check. This crate
//! has no tensors, no threads and no clock, and depends on `std` only; the feature `serde` adds the crate `serde`.
//!
//! # Layout
//!
//! Each module uses only the modules above it:
//!
//! - `plan`: actions, plans, placements of stages on workers, transfers, and their string forms (PyTorch's CSV).
//! - `measured`: the measurements of an executed (not simulated) step: its timed events, the allocated memory, and each
//!   worker's time divided into work and causes of idle time.
//! - `costs`: the times of forward and backward passes, transfers and optimizer steps.
//! - `check`: checks that a plan is complete, and that it does not deadlock if each channel holds a given number of
//!   micro-batches. Also gives the global order of transfers.
//! - `simulate`: the timeline of a checked plan, its bubble, idle time by cause, device memory, and pictures.
//! - `schedules`: the [`Schedule`] trait, one generator per file, and [`SCHEDULES`], the list of all generators.
//! - `search`: a lower bound on the step time, plans generated for given costs and a memory limit, and the partition of
//!   layers into stages.
//!
//! Unit tests may use the whole crate.
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

mod check;
mod costs;
mod measured;
mod plan;
mod schedules;
mod search;
mod simulate;

pub use check::{Blocked, CheckError, Checked, Deadlock, Excerpt, Span, check};
pub use costs::{Costs, StageCost, Transfers};
pub use measured::{Account, Activity, Event, Held, UnknownActivity, WaitCause, WorkerMemory};
pub use plan::{
    Action, Carried, CellError, Compute, Instruction, ParseActionError, ParsePlanError, Placement, Plan, Transfer,
    lower,
};
pub use schedules::*;
pub use search::{
    BalanceError, Best, SearchError, SpeedError, balance, balance_for, balance_with_speeds, best, best_placed,
    best_with_channels, check_search_size, lower_bound, short_plan,
};
pub use simulate::{Idle, Memory, StageMemory, Timeline, simulate};

/// Compiles the example in the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
