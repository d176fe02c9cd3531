//! Stops and joins the threads, and keeps their stages.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::{Ended, Workers};
use crate::device::remote::stuck;
use crate::failure::step_error::StepError;
use crate::failure::watchdog::Place;
use crate::runner::Runner;
use crate::state::layout::StageState;
use crate::threads::ends_within;
use crate::threads::failure::Failure;

/// How long threads are waited for after an error, if no action takes long: a thread in an endless action cannot be ended from outside.
const AFTER_AN_ERROR: Duration = Duration::from_secs(5);

impl<In, Target> Workers<In, Target> {
    /// Stops and joins every worker, and returns the one root cause. A stage that has made half a step is reported with the number of
    /// steps after which the last checkpoint was taken.
    pub(crate) fn end(&mut self, ended: Ended, last_checkpoint: Option<usize>) -> StepError {
        if let Ended::ByCaller(error) = ended {
            self.stop.raise(error);
        }
        let error = self.stop.take_error().map(|error| self.name_lost_networks(self.name_lost_hosts(error)));
        let patience = match &error {
            // A worker that waits for a lost host does not end.
            Some(StepError::HostsLost { hosts, .. }) => {
                self.give_up(hosts);
                Some(AFTER_AN_ERROR)
            }
            Some(StepError::HostsApart { .. }) => Some(AFTER_AN_ERROR),
            _ => self.watch.watchdog.map(|watchdog| AFTER_AN_ERROR.max(watchdog.many(self.watch.longest))),
        };
        self.join(patience);
        if self.out_of_reach.is_empty() {
            // Another replica's host may be lost, or the network between two hosts.
            let stages = self.ended.iter().map(|runner| (runner.stage(), runner.device()));
            self.out_of_reach = stuck(stages, patience.unwrap_or(AFTER_AN_ERROR));
        }
        let stopped = StepError::Stopped { during: self.watch.during };
        let error = error.or_else(|| self.stop.take_error()).unwrap_or(stopped);
        match self.ended.iter().find(|runner| runner.is_torn()) {
            Some(runner) => {
                StepError::Torn { stage: runner.stage(), cause: Box::new(error), checkpoint: last_checkpoint }
            }
            None => error,
        }
    }

    /// Joins every worker that still runs, and keeps the stages of the first replica. A thread that does not end in time is left behind.
    pub(crate) fn join(&mut self, patience: Option<Duration>) {
        // Dropping the caller's ends of the channels ends idle workers.
        let workers: Vec<_> =
            self.handles.drain(..).map(|worker| (worker.replica, worker.thread, worker.progress)).collect();
        let start = Instant::now();
        for (replica, thread, progress) in workers {
            if patience.is_some_and(|patience| !ends_within(&thread, patience.saturating_sub(start.elapsed()))) {
                let Some(Place { stage, activity, .. }) = progress.places().pop() else { continue };
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

    /// Takes the stages of the first replica, after the workers have ended.
    pub(crate) fn take_stages(&mut self) -> Vec<Box<dyn Runner>> {
        std::mem::take(&mut self.ended)
    }

    /// Reads the state of every stage of the first replica, after the workers have ended.
    ///
    /// # Errors
    /// [`StepError::Lost`] if a stage is gone, and [`StepError::Unreadable`] if its device is.
    pub(crate) fn states(&self) -> Result<Vec<StageState>, StepError> {
        // Before anything is read: reading from a lost host would wait for ever.
        if let Some(&stage) = self.out_of_reach.first() {
            return Err(StepError::Lost { stage });
        }
        let whole = |stage: usize| self.ended.iter().find(|runner| runner.stage() == stage && runner.is_whole());
        let state = |stage| {
            let runner = whole(stage).ok_or(StepError::Lost { stage })?;
            // The device may be what failed.
            let read = catch_unwind(AssertUnwindSafe(|| runner.state()));
            read.map_err(|panic| StepError::Unreadable { stage, failure: Failure::of_panic(panic) })
        };
        (0..self.stages).map(state).collect()
    }
}
