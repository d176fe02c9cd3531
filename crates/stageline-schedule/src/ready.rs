//! Which worker is looked at next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::costs::Transfers;

/// Workers that may be able to go on.
pub(crate) enum Ready {
    /// In any order.
    Stack(Vec<usize>),
    /// The earliest first.
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

    /// Whether another worker must go on before one that stands at `now`.
    pub(crate) fn another_first(&self, now: f64) -> bool {
        match self {
            Self::Stack(_) => false,
            Self::ByTime(workers) => workers.peek().is_some_and(|Reverse((time, _))| time.0 < now),
        }
    }
}

/// A point in time, in its total order.
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
