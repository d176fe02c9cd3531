//! Whose time is taken, and what is held.

use std::cell::Cell;
use std::time::{Duration, Instant};

use burn::tensor::Device;

use crate::device::location::is_host;
use crate::recording::Clock;
use crate::recording::allocator::Meter;
use crate::recording::events::{Held, Reading};

/// What is read at the end of everything that a worker does.
pub(crate) struct Gauges {
    /// Of the step.
    clock: Clock,
    /// How long it takes to ask each device whether it is done, if it is: most of all one of another host.
    asking: Vec<(Device, Duration)>,
    /// What was held on a GPU when it was last read.
    before: Cell<u64>,
    /// Of the worker's threads, where an allocator counts.
    pub(crate) meter: Option<&'static Meter>,
}

impl Gauges {
    pub(crate) fn new() -> Self {
        Self { clock: Clock::Host, asking: Vec::new(), before: Cell::new(0), meter: None }
    }

    /// Waits for the device, if that is how time is taken, and reads what is held there, if that is known.
    pub(crate) fn read(&self, device: &Device) -> Reading {
        if is_host(device) {
            return Reading { held: self.meter.map(Meter::read), asked: Duration::ZERO };
        }
        if self.clock == Clock::Host {
            return Reading::default();
        }
        wait_for(device);
        let asked = self.asking.iter().find(|(asked, _)| asked == device).map_or(Duration::ZERO, |(_, takes)| *takes);
        Reading { held: self.held(device), asked }
    }

    fn held(&self, device: &Device) -> Option<Held> {
        let held = device.memory_pool_usage()?.bytes_in_use;
        let kept = held as i64 - self.before.replace(held) as i64;
        Some(Held { end: held, peak: held, kept })
    }

    /// Begins a pass of stages on these devices: what was before it is not its peak.
    pub(crate) fn begin<'a>(&mut self, clock: Clock, devices: impl Iterator<Item = &'a Device>) {
        self.clock = clock;
        self.meter.map(Meter::read);
        self.asking.clear();
        for device in devices.filter(|device| clock == Clock::Synchronised && !is_host(device)) {
            if self.asking.iter().all(|(asked, _)| asked != device) {
                wait_for(device);
                let start = Instant::now();
                wait_for(device);
                self.asking.push((device.clone(), start.elapsed()));
            }
        }
    }
}

fn wait_for(device: &Device) {
    // A device that fails here fails again at the next thing that it is asked for, where there is an error to return.
    if let Err(error) = device.sync() {
        tracing::warn!(?device, %error, "the device could not be waited for");
    }
}
