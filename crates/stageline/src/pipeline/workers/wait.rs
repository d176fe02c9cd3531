//! Blocking sends to and receives from the workers, which end with an error if the workers stall.

use std::time::{Duration, Instant};

use super::watch::Watch;
use super::{Ended, Workers};
use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::failure::watchdog::{Stall, Watchdog};
use crate::threads::{Receiver, Sender};

impl<In, Out, Target> Workers<In, Out, Target> {
    /// Records that a step, evaluation or other request (`during`) begins now, for the watchdog and for error messages.
    pub(crate) fn begin(&mut self, during: During) {
        (self.watch.during, self.watch.began) = (during, Instant::now());
        self.watch.warned.set(false);
    }

    pub(crate) fn during(&self) -> During {
        self.watch.during
    }

    pub(crate) fn began(&self) -> Instant {
        self.watch.began
    }

    /// Returns the duration of the longest action (such as a forward pass) that a worker has completed so far, without
    /// waits. The watchdog reports a stall only if no worker makes progress for several times this duration.
    pub(super) fn longest_action(&self) -> Duration {
        self.handles.iter().map(|worker| worker.progress.longest()).max().unwrap_or_default()
    }

    /// Waits for a message from the workers and returns it. Returns an error if the workers stall during this wait.
    pub(super) fn receive<R>(&self, messages: &Receiver<R>) -> Result<R, Ended> {
        let Some(watchdog) = self.watch.watchdog else { return Ok(self.stop.receive(messages)?) };
        loop {
            if let Some(message) = self.stop.receive_within(messages, watchdog.interval())? {
                return Ok(message);
            }
            self.check_progress(watchdog)?;
        }
    }

    /// Sends a message to a worker, and blocks while the worker's channel is full. Returns an error if the workers
    /// stall during this wait.
    pub(super) fn send<R>(&self, channel: &Sender<R>, mut message: R) -> Result<(), Ended> {
        let Some(watchdog) = self.watch.watchdog else { return Ok(self.stop.send(channel, message)?) };
        while let Some(back) = self.stop.send_within(channel, message, watchdog.interval())? {
            message = back;
            self.check_progress(watchdog)?;
        }
        Ok(())
    }

    /// Logs a warning of a stall if no worker makes progress for too long. Returns an error if the stall lasts longer
    /// than the watchdog allows, or if a host is lost.
    fn check_progress(&self, watchdog: Watchdog) -> Result<(), Ended> {
        let Watch { warned, asked, during, began, .. } = &self.watch;
        let limit = watchdog.limit(self.longest_action());
        let stall = Stall::seen(self.handles.iter().map(|worker| worker.progress.places()), *began, *during);
        if stall.still > limit.saturating_add(watchdog.grace) {
            return Err(Ended::ByCaller(StepError::Stalled(Box::new(stall))));
        }
        if stall.still > limit && !warned.replace(true) {
            tracing::warn!(events = %stall.to_json(), "{stall}");
        }
        // A liveness check is cheap, so unlike the stall warning, it is not delayed by a multiple of the longest
        // action. The intervals between checks double while all hosts answer.
        let floors = stall.still.div_duration_f64(watchdog.floor) as u32;
        if floors.checked_ilog2() > asked.replace(floors).checked_ilog2() {
            let error = self.name_lost_hosts(StepError::Stalled(Box::new(stall)));
            if matches!(error, StepError::HostsLost { .. }) {
                return Err(Ended::ByCaller(error));
            }
        }
        Ok(())
    }
}
