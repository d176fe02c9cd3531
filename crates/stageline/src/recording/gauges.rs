//! Takes the measurements at the end of every activity of a worker (a computation, a transfer or a wait). It reads the
//! memory in use, and in a synchronised step it waits for the device first.

use std::cell::Cell;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use stageline_schedule::Held;

use crate::device::location::{is_gpu, is_host};
use crate::recording::Clock;
use crate::recording::allocator::Meter;
use crate::recording::events::Reading;

/// The instruments with which a worker measures time and memory in use at the end of every activity (a computation, a
/// transfer or a wait).
pub(crate) struct Gauges {
    clock: Clock,
    /// The worker's devices, each with the time that it takes to ask the idle device whether it has finished.
    /// Recordings subtract this time from the times of actions, such as a forward pass.
    asking: Vec<(Device, Duration)>,
    /// The bytes in use on the GPU at the last reading. The next reading computes the change from them.
    before: Cell<u64>,
    /// The meter of the worker's host memory; `None` if the program's allocator does not count memory.
    pub(crate) meter: Option<&'static Meter>,
}

impl Gauges {
    pub(crate) fn new() -> Self {
        Self { clock: Clock::Host, asking: Vec::new(), before: Cell::new(0), meter: None }
    }

    /// Returns the measurements at the end of a worker's activity: the memory in use, and the time that it takes to ask
    /// the device whether it has finished. For a CPU, this time is 0. Any other device is measured only in a
    /// synchronised step (a step whose workers wait for their device after every action). There, this function first
    /// waits for the device.
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

    /// Returns the measurements of [`read`](Self::read) if `device` is a GPU of this host, and an empty reading
    /// otherwise. A worker measures its GPU again after a wait, because meanwhile other stages may have changed the
    /// memory in use there.
    pub(crate) fn read_gpu(&self, device: &Device) -> Reading {
        if is_gpu(device) { self.read(device) } else { Reading::default() }
    }

    fn held(&self, device: &Device) -> Option<Held> {
        let held = device.memory_pool_usage()?.bytes_in_use;
        let kept = held as i64 - self.before.replace(held) as i64;
        Some(Held { end: held, peak: held, kept })
    }

    /// Prepares the measurements of a new pass over a batch, such as a step, and resets the peak of host memory. In a
    /// synchronised pass it also measures, for each device except the CPU, how long it takes to ask the idle device
    /// whether it has finished.
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
    // A device that fails here fails again at its next operation, where an error can be returned.
    if let Err(error) = device.sync() {
        tracing::warn!(?device, %error, "the wait for the device failed");
    }
}
