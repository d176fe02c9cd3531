//! Measures a worker's allocated memory at the end of every activity (a computation, a transfer or a wait). In a
//! synchronised step, first waits for the device.

use std::cell::Cell;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use stageline_schedule::Held;

use crate::device::location::{is_gpu, is_host};
use crate::recording::Clock;
use crate::recording::allocator::Meter;
use crate::recording::events::Reading;

/// Measures a worker's allocated memory, and the overhead of synchronising with its device, at the end of every
/// activity (a computation, a transfer or a wait).
pub(crate) struct Gauges {
    clock: Clock,
    /// The worker's devices other than the CPU, which a synchronised step measures.
    devices: Vec<Measured>,
    /// The meter of the worker's host memory; `None` if the program's allocator does not count memory.
    pub(crate) meter: Option<&'static Meter>,
}

impl Gauges {
    pub(crate) fn new() -> Self {
        Self { clock: Clock::Host, devices: Vec::new(), meter: None }
    }

    /// Measures the allocated memory and the synchronisation overhead at the end of a worker's activity. For a CPU, the
    /// overhead is 0. For any other device, first waits for the device in a synchronised step (a step whose workers
    /// wait for their device after every action), and returns an empty reading in any other step.
    pub(crate) fn read(&self, device: &Device) -> Reading {
        if is_host(device) {
            return Reading { held: self.meter.map(Meter::read), asked: Duration::ZERO };
        }
        if self.clock == Clock::Host {
            return Reading::default();
        }
        wait_for(device);
        let measured = self.devices.iter().find(|measured| measured.device == *device);
        measured.map_or_else(Reading::default, |measured| Reading { held: measured.held(), asked: measured.asked })
    }

    /// Measures a GPU of this host after the worker has waited, because other stages on the GPU may have allocated or
    /// freed memory meanwhile. Returns the same measurements as [`read`](Self::read), or an empty reading for any other
    /// device.
    pub(crate) fn read_gpu(&self, device: &Device) -> Reading {
        if is_gpu(device) { self.read(device) } else { Reading::default() }
    }

    /// Prepares the measurements of a step or evaluation, and resets the peak of host memory. With a synchronised
    /// clock, also measures how long a synchronisation with each idle device takes, except for the CPU.
    pub(crate) fn begin<'a>(&mut self, clock: Clock, devices: impl Iterator<Item = &'a Device>) {
        self.clock = clock;
        self.meter.map(Meter::read);
        self.devices.clear();
        for device in devices.filter(|device| clock == Clock::Synchronised && !is_host(device)) {
            if self.devices.iter().all(|measured| measured.device != *device) {
                self.devices.push(Measured::now(device));
            }
        }
    }
}

/// A device other than the CPU, as it is measured in a synchronised step.
struct Measured {
    device: Device,
    /// The duration of a synchronisation when the device is idle. Recordings subtract this overhead from the times of
    /// actions, such as a forward pass.
    asked: Duration,
    /// Bytes allocated on the device at the last measurement. The next measurement subtracts them to compute the
    /// change.
    before: Cell<u64>,
}

impl Measured {
    /// Waits for the device, and measures a synchronisation and the allocated memory.
    fn now(device: &Device) -> Self {
        wait_for(device);
        let start = Instant::now();
        wait_for(device);
        let asked = start.elapsed();
        let before = device.memory_pool_usage().map_or(0, |usage| usage.bytes_in_use);
        Self { device: device.clone(), asked, before: Cell::new(before) }
    }

    /// Returns the device's allocated memory, and its change since the last measurement. Returns `None` if the device
    /// does not report its memory.
    fn held(&self) -> Option<Held> {
        let held = self.device.memory_pool_usage()?.bytes_in_use;
        let kept = held as i64 - self.before.replace(held) as i64;
        Some(Held { end: held, peak: held, kept })
    }
}

fn wait_for(device: &Device) {
    // A device that fails here fails again at its next operation, which can return an error.
    if let Err(error) = device.sync() {
        tracing::warn!(?device, %error, "the wait for the device failed");
    }
}
