//! Schedules: the [`Schedule`] trait and its generators of plans, one per file, such as [`GPipe`], [`OneFOneB`],
//! [`Interleaved`] and [`ZbV`].
//!
//! The input is the numbers of stages, of chunks (stages on one worker) and of micro-batches. The output is a
//! [`Plan`](crate::Plan), in which every worker has a warm-up, a steady phase and a cool-down. Where a formula is
//! known, a schedule also gives the step time in closed form. [`SCHEDULES`] lists all generators, [`schedule_named`]
//! finds one by its name, and a [`ScheduleError`] says why a schedule has no plan for the given numbers. A generator
//! must not run, check or simulate its plan, and one schedule does not change another.

use std::fmt;

mod building_block;
mod dualpipe_v;
mod eager_one_f_one_b;
mod error;
mod gpipe;
mod interleaved;
mod looped_breadth_first;
mod one_f_one_b;
mod rows;
mod schedule;
mod squeeze;
mod v_half;
mod v_min;
mod v_shape;
mod zb_h1;
mod zb_h2;
mod zb_v;

pub use error::ScheduleError;
pub use schedule::Schedule;

/// Exports every schedule and lists it in [`SCHEDULES`]. Each argument of this macro gives the module and the type of a
/// schedule, and the values of its fields.
macro_rules! schedules {
    ($($file:ident::$schedule:ident $({ $field:ident: $value:expr })?,)*) => {
        $(pub use $file::$schedule;)*

        /// All schedules of this crate. Schedules that allow any number of chunks (stages) per worker have 2 chunks in
        /// the list.
        pub const SCHEDULES: &[&(dyn Schedule + Sync)] = &[$(&$schedule $({ $field: $value })?),*];
    };
}

// A new schedule needs a file in `schedules/`, its `mod`, and a line here.
schedules! {
    gpipe::GPipe,
    one_f_one_b::OneFOneB,
    eager_one_f_one_b::EagerOneFOneB,
    interleaved::Interleaved { chunks: 2 },
    looped_breadth_first::LoopedBreadthFirst { chunks: 2 },
    zb_h1::ZbH1,
    zb_h2::ZbH2,
    zb_v::ZbV,
    dualpipe_v::DualPipeV,
    v_half::VHalf,
    v_min::VMin,
}

/// Finds the schedule with a given name, such as `1f1b`, among all schedules of this crate.
///
/// # Errors
/// Returns an [`UnknownSchedule`] error, which lists the names of all schedules.
pub fn schedule_named(name: &str) -> Result<&'static (dyn Schedule + Sync), UnknownSchedule> {
    let found = SCHEDULES.iter().find(|schedule| schedule.name() == name);
    found.copied().ok_or_else(|| UnknownSchedule { name: name.to_owned() })
}

/// The error for a name that no schedule has. Its message lists the names of all schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSchedule {
    name: String,
}

impl fmt::Display for UnknownSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = SCHEDULES.iter().map(|schedule| schedule.name()).collect();
        write!(f, "there is no schedule `{}`; there are {}", self.name, names.join(", "))
    }
}

impl std::error::Error for UnknownSchedule {}
