//! The record of one activity of a worker ([`Event`]), with its times, the bytes sent and the allocated memory
//! ([`Held`]).

use std::time::Duration;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::activity::{Activity, WaitCause};

/// The record of one activity of a worker in a measured step, such as a forward pass, a send or the optimizer step.
/// Times count from the beginning of the step, and logs store them in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
pub struct Event {
    /// Zero-based index of the stage that the recorded activity, such as a forward pass, belongs to. A worker may have
    /// several stages.
    pub stage: usize,
    /// The activity of the worker that the event records, such as an instruction or the optimizer step.
    pub activity: Activity,
    /// The time when the recorded activity of a worker began, from the beginning of the step. It is also the end of the
    /// worker's previous event, if there is one.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub start: Duration,
    /// The time when the recorded activity of a worker ended, from the beginning of the step.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub end: Duration,
    /// Time that the worker spent waiting during the recorded activity: for other workers, or for the caller (the
    /// thread of the user's program that commands the pipeline).
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub waited: Duration,
    /// Time that the worker spent synchronising with its device during the recorded activity, to measure how long the
    /// activity took. Zero on a CPU, and outside synchronised steps. For a remote device (on another host), it can
    /// exceed the time of the work itself.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub asked: Duration,
    /// The worker's allocated memory during the recorded activity; `None` if memory is not measured (see [`Held`]).
    pub held: Option<Held>,
    /// Bytes of tensors that the recorded activity sent to another stage; 0 if it sent none.
    pub sent: u64,
}

impl Event {
    /// Returns how long the worker actually worked during the event: its duration minus waits and device
    /// synchronisation.
    pub fn worked(&self) -> Duration {
        self.end.saturating_sub(self.start).saturating_sub(self.waited).saturating_sub(self.asked)
    }

    /// Returns the cause of a worker's wait during a recorded event: other stages, or the caller. Returns `None` if the
    /// worker did not wait.
    pub fn waited_for(&self) -> Option<WaitCause> {
        (self.waited > Duration::ZERO).then(|| self.activity.wait_cause()).flatten()
    }

    /// Whether a recorded event is work of a stage: a forward or backward pass, or the stage's part of the flush
    /// (gradient norms and optimizer step). False for all other events, such as transfers and waits.
    pub fn computes(&self) -> bool {
        self.activity.computes()
    }
}

/// A worker's allocated memory during one recorded event, in bytes.
///
/// Host memory is measured in programs that install the runtime's counting allocator. A GPU's memory is measured in
/// synchronised steps only (where workers wait for their device after every action). The measured value is the number
/// of bytes allocated from the GPU's memory pools at the end of each event. Stages on the same GPU share the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
pub struct Held {
    /// Bytes that the worker had allocated at the end of a recorded event, such as a forward pass.
    pub end: u64,
    /// Peak number of bytes that the worker had allocated during a recorded event, such as a forward pass. On a GPU, it
    /// is the number at the end of the event.
    pub peak: u64,
    /// Net bytes that the worker allocated (allocated minus freed) during a recorded event; may be negative. On the
    /// host, memory that other workers free does not count. On a GPU, it is the change in allocated bytes since the end
    /// of the worker's previous event.
    pub kept: i64,
}

/// Serialises and deserialises a duration as a number of seconds, for serde's attribute `with`.
#[cfg(feature = "serde")]
mod seconds {
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        duration.as_secs_f64().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(Error::custom)
    }
}
