//! The caller waits for workers, and looks meanwhile whether any of them still begins something.

use crate::failure::step_error::StepError;
use crate::failure::watchdog::{Stall, Watchdog};
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::workers::pass::Ended;
use crate::threads::{Receiver, Sender};

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// Waits for a message of a worker, and looks meanwhile whether any of them still begins something.
    pub(crate) fn receive<R>(&self, messages: &Receiver<R>) -> Result<R, Ended> {
        let Some(watchdog) = self.stepping.watchdog else { return Ok(self.stop.receive(messages)?) };
        loop {
            if let Some(message) = self.stop.receive_within(messages, watchdog.interval())? {
                return Ok(message);
            }
            self.look(watchdog)?;
        }
    }

    /// Sends to a worker, and looks meanwhile as well.
    pub(crate) fn send<R>(&self, channel: &Sender<R>, mut message: R) -> Result<(), Ended> {
        let Some(watchdog) = self.stepping.watchdog else { return Ok(self.stop.send(channel, message)?) };
        while let Some(back) = self.stop.send_within(channel, message, watchdog.interval())? {
            message = back;
            self.look(watchdog)?;
        }
        Ok(())
    }

    /// Whether any worker still begins something.
    fn look(&self, watchdog: Watchdog) -> Result<(), Ended> {
        let limit = watchdog.limit(self.longest);
        let stall = Stall::seen(self.workers.iter().map(|worker| worker.post.places()), self.began, self.during);
        if stall.still > limit.saturating_add(watchdog.grace) {
            return Err(Ended::ByCaller(StepError::Stalled(Box::new(stall))));
        }
        if stall.still > limit && !self.warned.replace(true) {
            tracing::warn!(events = %stall.to_json(), "{stall}");
        }
        // To ask is cheap, so it need not be as long as many actions; but who is asked again and again is there.
        let floors = stall.still.div_duration_f64(watchdog.floor) as u32;
        if floors > self.asked.replace(floors) && floors.is_power_of_two() {
            let error = self.of_hosts(StepError::Stalled(Box::new(stall)));
            if matches!(error, StepError::HostsLost { .. }) {
                return Err(Ended::ByCaller(error));
            }
        }
        Ok(())
    }
}
