//! Waits for a worker, and notices meanwhile that all of them have stopped making progress.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::{Ended, Workers};
use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::failure::watchdog::{Stall, Watchdog};
use crate::threads::{Receiver, Sender};

/// The watchdog, and what it has seen.
pub(super) struct Watch {
    pub(super) watchdog: Option<Watchdog>,
    /// The longest time that a worker has spent on one action in any step.
    pub(super) longest: Duration,
    /// Whether the watchdog has warned since the workers were last asked for something.
    warned: Cell<bool>,
    /// The number of the watchdog's floors without progress after which hosts were last asked whether they answer.
    asked: Cell<u32>,
    /// What the workers were last asked for, and when.
    pub(super) during: During,
    began: Instant,
}

impl Watch {
    pub(super) fn new(watchdog: Option<Watchdog>) -> Self {
        Self {
            watchdog,
            longest: Duration::ZERO,
            warned: Cell::new(false),
            asked: Cell::new(0),
            during: During::Step(0),
            began: Instant::now(),
        }
    }
}

impl<In, Target> Workers<In, Target> {
    /// Notes what the workers are asked for from now on.
    pub(crate) fn begin(&mut self, during: During) {
        (self.watch.during, self.watch.began) = (during, Instant::now());
        self.watch.warned.set(false);
    }

    /// What the workers were last asked for.
    pub(crate) fn during(&self) -> During {
        self.watch.during
    }

    /// When the workers were last asked for something.
    pub(crate) fn began(&self) -> Instant {
        self.watch.began
    }

    /// Notes how long an action took, so that the watchdog is patient with such actions.
    pub(crate) fn note_action(&mut self, took: Duration) {
        self.watch.longest = self.watch.longest.max(took);
    }

    /// Waits for a message of a worker.
    pub(super) fn receive<R>(&self, messages: &Receiver<R>) -> Result<R, Ended> {
        let Some(watchdog) = self.watch.watchdog else { return Ok(self.stop.receive(messages)?) };
        loop {
            if let Some(message) = self.stop.receive_within(messages, watchdog.interval())? {
                return Ok(message);
            }
            self.check_progress(watchdog)?;
        }
    }

    /// Sends a message to a worker, and waits for room in its channel.
    pub(super) fn send<R>(&self, channel: &Sender<R>, mut message: R) -> Result<(), Ended> {
        let Some(watchdog) = self.watch.watchdog else { return Ok(self.stop.send(channel, message)?) };
        while let Some(back) = self.stop.send_within(channel, message, watchdog.interval())? {
            message = back;
            self.check_progress(watchdog)?;
        }
        Ok(())
    }

    /// Warns of a stall, and ends one that lasts.
    fn check_progress(&self, watchdog: Watchdog) -> Result<(), Ended> {
        let Watch { longest, warned, asked, during, began, .. } = &self.watch;
        let limit = watchdog.limit(*longest);
        let stall = Stall::seen(self.handles.iter().map(|worker| worker.progress.places()), *began, *during);
        if stall.still > limit.saturating_add(watchdog.grace) {
            return Err(Ended::ByCaller(StepError::Stalled(Box::new(stall))));
        }
        if stall.still > limit && !warned.replace(true) {
            tracing::warn!(events = %stall.to_json(), "{stall}");
        }
        // Asking hosts is cheap, so it need not wait as long as several actions take; the intervals double while they answer.
        let floors = stall.still.div_duration_f64(watchdog.floor) as u32;
        if floors > asked.replace(floors) && floors.is_power_of_two() {
            let error = self.name_lost_hosts(StepError::Stalled(Box::new(stall)));
            if matches!(error, StepError::HostsLost { .. }) {
                return Err(Ended::ByCaller(error));
            }
        }
        Ok(())
    }
}
