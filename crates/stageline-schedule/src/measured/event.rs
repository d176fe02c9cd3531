//! The record of one activity of a worker ([`Event`]), with its times, the bytes sent and the memory in use ([`Held`]).

use std::time::Duration;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::activity::{Activity, WaitCause};

/// The record of one activity of a worker in a step, such as a forward, a send or the optimizer step. Its times count
/// from the beginning of the step; in logs they are numbers of seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
pub struct Event {
    /// The index, from 0, of the stage for which the worker did the recorded activity, such as a forward.
    pub stage: usize,
    /// The activity of the worker that the event records, such as an instruction or the optimizer step.
    pub activity: Activity,
    /// The time at which the recorded activity of a worker began, from the beginning of the step. The worker's previous
    /// event, if there is one, ends at the same time.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub start: Duration,
    /// The time at which the recorded activity of a worker ended, from the beginning of the step.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub end: Duration,
    /// The part of a recorded activity's time in which the worker was blocked by a wait for other workers or the caller
    /// (the user's thread that runs the pipeline).
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub waited: Duration,
    /// The part of a recorded activity's time that only the measurement needs in a synchronised step (in which workers
    /// wait for their device after every action): the time to ask the device whether it has finished. It is zero in
    /// other steps and on a CPU. For a device of another host, asking takes longer than many actions.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub asked: Duration,
    /// The worker's memory in use during the recorded activity; `None` if memory is not measured (see [`Held`]).
    pub held: Option<Held>,
    /// The number of bytes of tensors that the recorded activity of a worker sent to another stage; 0 if it sent none.
    pub sent: u64,
}

impl Event {
    /// Returns the duration of a worker's recorded event, without the wait for other workers and without the time spent
    /// asking the device whether it has finished.
    pub fn worked(&self) -> Duration {
        self.end.saturating_sub(self.start).saturating_sub(self.waited + self.asked)
    }

    /// Returns the cause of a worker's wait during a recorded event: other stages, or the caller (the user's thread
    /// that runs the pipeline). The result is `None` if the worker did not wait.
    pub fn waited_for(&self) -> Option<WaitCause> {
        (self.waited > Duration::ZERO).then(|| self.activity.wait_cause()).flatten()
    }

    /// Whether a recorded event is work of the worker's stage (a forward, a backward, or the stage's part of the
    /// flush), not a transfer or a wait.
    pub fn computes(&self) -> bool {
        self.activity.computes()
    }
}

/// The memory in use by a worker during one recorded event, in bytes.
///
/// Host memory is measured in programs that install the runtime's counting allocator. A GPU's memory is measured in
/// synchronised steps (in which workers wait for their device after every action), as the bytes that the GPU's memory
/// pools have in use at the end of each event: several stages on one GPU share the pools, and a peak is the largest of
/// these readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
pub struct Held {
    /// The number of bytes of memory that the worker had in use at the end of a recorded event, such as a forward.
    pub end: u64,
    /// The largest number of bytes of memory that the worker had in use at any time of a recorded event, such as a
    /// forward; on a GPU, the reading at the end of the event.
    pub peak: u64,
    /// The number of bytes of memory that the worker allocated during a recorded event, less the bytes that it freed;
    /// negative if it freed more. On the host, frees of the worker's memory by other workers do not count. On a GPU,
    /// the value is the number of bytes in use at the end of the event, less the number at the end of the worker's
    /// previous event.
    pub kept: i64,
}

/// Writes and reads a duration as a number of seconds in a log.
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
