//! Stops and joins the worker threads, and keeps their stages, from which checkpoints and trained modules are taken.

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

/// The shortest time limit for the worker threads to end after an error. The limit is exactly this time if a host or a
/// network link between hosts is lost. After other errors it grows with the longest action of the training, and without
/// a watchdog there is no limit. A thread that exceeds the limit is abandoned.
const AFTER_AN_ERROR: Duration = Duration::from_secs(5);

impl<In, Out, Target> Workers<In, Out, Target> {
    /// Stops and joins every worker, and returns the error that caused the stop. If a stage cannot roll back a step
    /// that other stages have not made, the error also names the step of the last checkpoint.
    pub(crate) fn end(&mut self, ended: Ended, last_checkpoint: Option<usize>) -> StepError {
        if let Ended::ByCaller(error) = ended {
            self.stop.raise(error);
        }
        let error = self.stop.take_error().map(|error| self.name_lost_networks(self.name_lost_hosts(error)));
        let patience = match &error {
            // A worker that waits for a lost host never ends.
            Some(StepError::HostsLost { hosts, .. }) => {
                self.give_up(hosts);
                Some(AFTER_AN_ERROR)
            }
            Some(StepError::HostsApart { .. }) => Some(AFTER_AN_ERROR),
            _ => self.watch.watchdog.map(|watchdog| AFTER_AN_ERROR.max(watchdog.many(self.watch.longest))),
        };
        self.join(patience);
        if self.out_of_reach.is_empty() {
            // Devices may not answer for another reason: a lost host of another replica, or a broken link between
            // hosts.
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

    /// Joins every running worker thread, and keeps the stages of the first replica with their trained modules. A
    /// thread that does not end within `patience` is abandoned, and its stages are lost.
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

    /// Removes and returns the stages of the first replica with their trained modules, after the workers have ended.
    pub(crate) fn take_stages(&mut self) -> Vec<Box<dyn Runner>> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the parameters and the optimizer state of every stage of the first replica, after the workers have
    /// ended.
    ///
    /// # Errors
    /// Returns [`StepError::Lost`] if a stage is lost, and [`StepError::Unreadable`] if the state cannot be read from a
    /// stage's device.
    pub(crate) fn states(&self) -> Result<Vec<StageState>, StepError> {
        // This check comes before any read, because a read from a lost host would wait for ever.
        if let Some(&stage) = self.out_of_reach.first() {
            return Err(StepError::Lost { stage });
        }
        let whole = |stage: usize| self.ended.iter().find(|runner| runner.stage() == stage && runner.is_whole());
        let state = |stage| {
            let runner = whole(stage).ok_or(StepError::Lost { stage })?;
            // The failure may be the device's, and then the read panics.
            let read = catch_unwind(AssertUnwindSafe(|| runner.state()));
            read.map_err(|panic| StepError::Unreadable { stage, failure: Failure::of_panic(panic) })
        };
        (0..self.stages).map(state).collect()
    }
}
