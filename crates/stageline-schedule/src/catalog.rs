//! Every schedule, by name.

use std::fmt;

use crate::schedule::Schedule;
use crate::{DualPipeV, EagerOneFOneB, GPipe, Interleaved, LoopedBreadthFirst, OneFOneB, VHalf, VMin, ZbH1, ZbH2, ZbV};

/// Every generator of this crate, with 2 chunks a worker where it has chunks. A new schedule is a file of its own and a line here.
pub const SCHEDULES: &[&(dyn Schedule + Sync)] = &[
    &GPipe,
    &OneFOneB,
    &EagerOneFOneB,
    &Interleaved { chunks: 2 },
    &LoopedBreadthFirst { chunks: 2 },
    &ZbH1,
    &ZbH2,
    &ZbV,
    &DualPipeV,
    &VHalf,
    &VMin,
];

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
