//! The queue of simulated workers that a replay (a simulated run of a plan) advances next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::costs::Transfers;

/// The queue of simulated workers that may be able to run their next instruction. The replay advances each of them.
pub(crate) enum Ready {
    /// Advance the worker that was pushed last. This is for asynchronous transfers, where the order of workers does not
    /// change the simulated times. The entries are indices of workers.
    Stack(Vec<usize>),
    /// Advance the worker with the earliest simulated time. This is for serialised transfers, which run first come,
    /// first served. The entries are the time and the index of each worker.
    ByTime(BinaryHeap<Reverse<(Time, usize)>>),
}

impl Ready {
    pub(crate) fn new(transfers: Transfers) -> Self {
        match transfers {
            Transfers::Asynchronous => Self::Stack(Vec::new()),
            Transfers::Serialised => Self::ByTime(BinaryHeap::new()),
        }
    }

    pub(crate) fn push(&mut self, worker: usize, now: f64) {
        match self {
            Self::Stack(workers) => workers.push(worker),
            Self::ByTime(workers) => workers.push(Reverse((Time(now), worker))),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<usize> {
        match self {
            Self::Stack(workers) => workers.pop(),
            Self::ByTime(workers) => workers.pop().map(|Reverse((_, worker))| worker),
        }
    }

    /// Whether the queue has a simulated worker whose time is before `now`, so that it must advance first. Always false
    /// for a [`Stack`](Self::Stack), which is not ordered by time.
    pub(crate) fn has_earlier_than(&self, now: f64) -> bool {
        match self {
            Self::Stack(_) => false,
            Self::ByTime(workers) => workers.peek().is_some_and(|Reverse((time, _))| time.0 < now),
        }
    }
}

/// A simulated time with a total order, so that a queue can be sorted by it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Time(pub(crate) f64);

impl Eq for Time {}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
