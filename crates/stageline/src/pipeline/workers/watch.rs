//! The state from which the watchdog detects a stall of the workers ([`Watch`]).

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::failure::activity::During;
use crate::failure::watchdog::Watchdog;

/// The state of the watchdog, which detects a stall of the workers. It consists of its time limits, the running pass
/// (step, evaluation, ...), and the longest action so far, such as a backward pass.
pub(super) struct Watch {
    pub(super) watchdog: Option<Watchdog>,
    /// The longest duration of one action (such as a forward or a backward) in any training step so far.
    pub(super) longest: Duration,
    /// Whether the watchdog has already warned of a stall in the current pass (step, evaluation, ...).
    pub(super) warned: Cell<bool>,
    /// The time for which no worker had begun a new activity (a computation, a transfer or a wait) when the watchdog
    /// last looked. It is counted in whole multiples of `Watchdog::floor` (the shortest time before a stall warning).
    /// The watchdog checks whether the other hosts still answer when this number reaches 1, 2, 4, 8 and so on.
    pub(super) asked: Cell<u32>,
    /// The kind and number of the pass (step, evaluation, ...) that the workers run now.
    pub(super) during: During,
    /// The time at which the current pass (step, evaluation, ...) began.
    pub(super) began: Instant,
}

impl Watch {
    pub(super) fn new(watchdog: Option<Watchdog>) -> Self {
        Self {
            watchdog,
            longest: Duration::ZERO,
            warned: Cell::new(false),
            asked: Cell::new(0),
            during: During::Step(0),
            began: Instant::now(),
        }
    }
}
