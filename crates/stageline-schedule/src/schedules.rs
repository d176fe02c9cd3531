//! Every schedule, one a file.

use std::fmt;

use crate::schedule::Schedule;

mod building_block;
mod rows;
mod v_shape;

/// Takes each schedule's file and type, and the values of its fields where it has some.
macro_rules! schedules {
    ($($file:ident::$schedule:ident $({ $field:ident: $value:expr })?,)*) => {
        $(
            mod $file;
            pub use $file::$schedule;
        )*

        /// Every generator of this crate, with 2 chunks a worker where the choice is free.
        pub const SCHEDULES: &[&(dyn Schedule + Sync)] = &[$(&$schedule $({ $field: $value })?),*];
    };
}

// A new schedule is a file in `schedules/` and a line here.
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

/// The schedule of that name.
///
/// # Errors
/// [`UnknownSchedule`], which lists the names there are.
pub fn schedule_named(name: &str) -> Result<&'static (dyn Schedule + Sync), UnknownSchedule> {
    let found = SCHEDULES.iter().find(|schedule| schedule.name() == name);
    found.copied().ok_or_else(|| UnknownSchedule { name: name.to_owned() })
}

/// There is no schedule of that name.
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
