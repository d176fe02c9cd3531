//! The record of one activity of a worker ([`Event`]), with its times, the bytes sent and the memory in use ([`Held`]).

use std::time::Duration;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::activity::{Activity, WaitCause};

/// The record of one activity of a worker in a measured step, such as a forward pass, a send or the optimizer step. Its
/// times count from the beginning of the step. Logs have them as numbers of seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
pub struct Event {
    /// The index, from 0, of the stage that the recorded activity, such as a forward pass, belongs to. A worker may
    /// have several stages.
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
    /// The part of the recorded activity's time that the worker spent waiting for other workers, or for the caller.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub waited: Duration,
    /// The part of the recorded activity's time that the worker spent asking its device whether it had finished. A
    /// worker asks only in synchronised steps, after every action, to measure the action's time. This part is zero on a
    /// CPU. For a device of another host, it is longer than many actions.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub asked: Duration,
    /// The worker's memory in use during the recorded activity; `None` if memory is not measured (see [`Held`]).
    pub held: Option<Held>,
    /// The number of bytes of tensors that the recorded activity of a worker sent to another stage; 0 if it sent none.
    pub sent: u64,
}

impl Event {
    /// Returns the time that a worker spent on the work of a recorded event. It excludes waits for other workers, and
    /// the time to ask the device whether it has finished.
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

/// The memory in use by a worker during one recorded event, in bytes.
///
/// Host memory is measured in programs that install the runtime's counting allocator. A GPU's memory is measured in
/// synchronised steps only (where workers wait for their device after every action). It is the number of bytes that the
/// GPU's memory pools have in use at the end of each event. Several stages on one GPU share the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
pub struct Held {
    /// The number of bytes of memory that the worker had in use at the end of a recorded event, such as a forward pass.
    pub end: u64,
    /// The largest number of bytes that the worker had in use during a recorded event, such as a forward pass. On a
    /// GPU, it is the number at the end of the event.
    pub peak: u64,
    /// The bytes that the worker allocated during a recorded event, minus the bytes that it freed; it may be negative.
    /// On the host, memory that other workers free does not count. On a GPU, it is the change of the bytes in use since
    /// the end of the worker's previous event.
    pub kept: i64,
}

/// The functions for serde's attribute `with` by which a log stores a duration as a number of seconds.
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
