//! Whose time is taken, and what is held.

use std::cell::Cell;

use burn::tensor::Device;

use crate::allocator::Meter;
use crate::events::Held;
use crate::location::is_host;
use crate::recording::Clock;

/// What is read at the end of everything that a worker does.
pub(crate) struct Gauges {
    /// Of the step.
    clock: Clock,
    /// What was held on a GPU when it was last read.
    before: Cell<u64>,
    /// Of the worker's threads, where an allocator counts.
    pub(crate) meter: Option<&'static Meter>,
}

impl Gauges {
    pub(crate) fn new() -> Self {
        Self { clock: Clock::Host, before: Cell::new(0), meter: None }
    }

    /// Waits for the device, if that is how time is taken, and reads what is held there, if that is known.
    pub(crate) fn read(&self, device: &Device) -> Option<Held> {
        if is_host(device) {
            return self.meter.map(Meter::read);
        }
        if self.clock == Clock::Host {
            return None;
        }
        // A device that fails here fails again at the next thing that it is asked for, where there is an error to return.
        if let Err(error) = device.sync() {
            tracing::warn!(?device, %error, "the device could not be waited for");
        }
        let held = device.memory_pool_usage()?.bytes_in_use;
        let kept = held as i64 - self.before.replace(held) as i64;
        Some(Held { end: held, peak: held, kept })
    }

    /// Begins a pass: what was before it is not its peak.
    pub(crate) fn begin(&mut self, clock: Clock) {
        self.clock = clock;
        self.meter.map(Meter::read);
    }
}
