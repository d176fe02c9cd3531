//! The state from which the watchdog detects a stall of the workers ([`Watch`]).

use std::cell::Cell;
use std::time::Instant;

use crate::failure::activity::During;
use crate::failure::watchdog::Watchdog;

/// The state of the watchdog, which detects stalled workers: its time limits, and the running step or evaluation.
pub(super) struct Watch {
    pub(super) watchdog: Option<Watchdog>,
    /// Whether the watchdog has already warned of a stall in the current step, evaluation or other request.
    pub(super) warned: Cell<bool>,
    /// The time without progress at the last check, in whole multiples of `Watchdog::floor`. Liveness checks of the
    /// other hosts run when it reaches 1, 2, 4, 8 and so on, so that they become rarer. Progress means that a worker
    /// begins a new activity (a computation, a transfer or a wait).
    pub(super) asked: Cell<u32>,
    /// The step, evaluation or other request that the workers run now, with its number.
    pub(super) during: During,
    /// The start time of the current step, evaluation or other request.
    pub(super) began: Instant,
}

impl Watch {
    pub(super) fn new(watchdog: Option<Watchdog>) -> Self {
        Self { watchdog, warned: Cell::new(false), asked: Cell::new(0), during: During::Step(0), began: Instant::now() }
    }
}
