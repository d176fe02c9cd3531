//! Whose time is taken, and what is held.

use burn::tensor::Device;

use crate::allocator::Meter;
use crate::device::is_host;
use crate::memory::Held;
use crate::recording::Clock;

/// What is read at the end of everything that a worker does.
pub(crate) struct Gauges {
    /// Of the step.
    pub(crate) clock: Clock,
    /// Of the worker's threads, where an allocator counts.
    pub(crate) meter: Option<&'static Meter>,
}

impl Gauges {
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
        device.memory_pool_usage().map(|usage| Held { end: usage.bytes_in_use, peak: usage.bytes_in_use })
    }
}
