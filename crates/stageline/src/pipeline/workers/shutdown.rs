//! How its threads end.

use std::time::{Duration, Instant};

use crate::device::remote::stuck;
use crate::failure::step_error::StepError;
use crate::failure::watchdog::Place;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::workers::pass::Ended;
use crate::threads::ends_within;
use crate::threads::failure::Failure;

/// How long threads are waited for after an error, if no action takes long: one in an endless action cannot be ended from outside.
const AFTER_AN_ERROR: Duration = Duration::from_secs(5);

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// Stops and joins every worker; gives the one root cause.
    pub(crate) fn end(&mut self, ended: Ended) -> StepError {
        if let Ended::ByCaller(error) = ended {
            self.stop.raise(error);
        }
        let error = self.stop.take_error().map(|error| self.of_ways(self.of_hosts(error)));
        let patience = match &error {
            // Who waits for a lost host does not end.
            Some(StepError::HostsLost { hosts, .. }) => {
                self.give_up(hosts);
                Some(AFTER_AN_ERROR)
            }
            Some(StepError::HostsApart { .. }) => Some(AFTER_AN_ERROR),
            _ => self.stepping.watchdog.map(|watchdog| AFTER_AN_ERROR.max(watchdog.many(self.longest))),
        };
        self.join(patience);
        if self.out_of_reach.is_empty() {
            // Another replica's host may be what is lost, or the way between two hosts.
            let stages = self.ended.iter().map(|runner| (runner.stage(), runner.device()));
            self.out_of_reach = stuck(stages, patience.unwrap_or(AFTER_AN_ERROR));
        }
        let error = error.or_else(|| self.stop.take_error()).unwrap_or(StepError::Stopped { during: self.during });
        match self.ended.iter().find(|runner| runner.is_torn()) {
            Some(runner) => {
                StepError::Torn { stage: runner.stage(), cause: Box::new(error), checkpoint: self.last_checkpoint }
            }
            None => error,
        }
    }

    /// Ends the threads. Workers in the middle of a step may wait for each other, so they are stopped first.
    pub(crate) fn finish(&mut self) {
        if self.is_in_flight {
            self.abandon();
        }
        self.join(None);
    }

    /// Ends every worker that still runs, and keeps the stages of the first replica. One that does not end in time is left behind.
    pub(crate) fn join(&mut self, patience: Option<Duration>) {
        // Without their ends of the channels.
        let workers: Vec<_> =
            self.workers.drain(..).map(|worker| (worker.replica, worker.thread, worker.post)).collect();
        let start = Instant::now();
        for (replica, thread, post) in workers {
            if patience.is_some_and(|patience| !ends_within(&thread, patience.saturating_sub(start.elapsed()))) {
                let Some(Place { stage, activity, .. }) = post.places().pop() else { continue };
                let replica = replica.index;
                tracing::error!(stage, replica, %activity, "a worker does not end: its thread and its modules are left behind");
                continue;
            }
            match thread.join() {
                Ok(runners) if replica.is_first() => self.ended.extend(runners),
                Ok(_) => {}
                Err(panic) => tracing::error!(failure = %Failure::of_panic(panic), "a worker thread was lost"),
            }
        }
    }
}

impl<In: Payload, Target: Payload> Drop for Pipeline<In, Target> {
    fn drop(&mut self) {
        self.finish();
    }
}
