//! Stops and joins the worker threads, and keeps their stages, so that checkpoints and trained modules can still be
//! taken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::{Ended, Workers};
use crate::device::remote::stuck;
use crate::failure::step_error::StepError;
use crate::failure::watchdog::Place;
use crate::model::replica::ReplicaStage;
use crate::runner::Runner;
use crate::state::frozen::FrozenFrom;
use crate::state::layout::StageState;
use crate::threads::ends_within;
use crate::threads::failure::Failure;

/// The time limit within which worker threads must end after an error; later they are abandoned. If a host or a network
/// link between hosts is lost, the limit is exactly this value. After other errors, this value is the minimum: the
/// limit grows with the longest action so far (such as a backward pass). Without a watchdog there is no limit after
/// other errors.
const AFTER_AN_ERROR: Duration = Duration::from_secs(5);

impl<In, Out, Target> Workers<In, Out, Target> {
    /// Stops and joins every worker, and returns the error that caused the stop. If a stage cannot roll back a step
    /// that other stages have not made, the error also names the step of the last checkpoint.
    pub(crate) fn end(&mut self, ended: Ended, last_checkpoint: Option<usize>) -> StepError {
        if let Ended::ByCaller(error) = ended {
            self.stop.raise(error);
        }
        let error = self.stop.take_error().map(|error| self.name_lost_networks(self.name_lost_hosts(error)));
        let lost: Vec<ReplicaStage> = match &error {
            Some(StepError::HostsLost { hosts, .. }) => hosts.iter().flat_map(|host| &host.stages).copied().collect(),
            _ => Vec::new(),
        };
        let patience = match &error {
            // A worker that waits for a lost host never ends.
            Some(StepError::HostsLost { .. } | StepError::HostsApart { .. }) => Some(AFTER_AN_ERROR),
            _ => self.watch.watchdog.map(|watchdog| AFTER_AN_ERROR.max(watchdog.many(self.longest_action()))),
        };
        let others = self.join(patience);
        let torn = self.ended.iter().find(|runner| runner.is_torn()).map(|runner| runner.stage());
        self.leave_behind(&lost, others, patience.unwrap_or(AFTER_AN_ERROR));
        let stopped = StepError::Stopped { during: self.watch.during };
        let error = error.or_else(|| self.stop.take_error()).unwrap_or(stopped);
        match torn {
            Some(stage) => StepError::Torn { stage, cause: Box::new(error), checkpoint: last_checkpoint },
            None => error,
        }
    }

    /// Leaks the stages on lost hosts (`lost`), and the stages whose devices do not answer within `patience`, instead
    /// of freeing their tensors. A device may not answer because it waits for a tensor from a lost host, or over a
    /// broken link between hosts. `others` are the ended stages of all replicas but the first.
    ///
    /// Freeing a tensor sends a request to its device. If the device does not answer and its queue is full, this would
    /// block the caller forever.
    fn leave_behind(&mut self, lost: &[ReplicaStage], others: Vec<Box<dyn Runner>>, patience: Duration) {
        let runners: Vec<_> = std::mem::take(&mut self.ended).into_iter().chain(others).collect();
        let place = |runner: &dyn Runner| ReplicaStage { replica: runner.replica(), stage: runner.stage() };
        let asked = runners.iter().enumerate().filter(|(_, runner)| !lost.contains(&place(&***runner)));
        let stuck = stuck(asked.map(|(index, runner)| (index, runner.device())), patience);
        self.out_of_reach.extend(lost.iter().filter(|lost| lost.replica.is_first()).map(|lost| lost.stage));
        for (index, runner) in runners.into_iter().enumerate() {
            let place = place(&*runner);
            if lost.contains(&place) || stuck.contains(&index) {
                if place.replica.is_first() && !self.out_of_reach.contains(&place.stage) {
                    self.out_of_reach.push(place.stage);
                }
                std::mem::forget(runner);
            } else if place.replica.is_first() {
                self.ended.push(runner);
            }
        }
    }

    /// Joins every running worker thread, and keeps the stages of the first replica with their trained modules. Returns
    /// the stages of the other replicas. A thread that does not end within `patience` is abandoned, and its stages are
    /// lost.
    pub(crate) fn join(&mut self, patience: Option<Duration>) -> Vec<Box<dyn Runner>> {
        // Dropping the caller's ends of the channels ends idle workers.
        let workers: Vec<_> =
            self.handles.drain(..).map(|worker| (worker.replica, worker.thread, worker.progress)).collect();
        let (start, mut others) = (Instant::now(), Vec::new());
        for (replica, thread, progress) in workers {
            if patience.is_some_and(|patience| !ends_within(&thread, patience.saturating_sub(start.elapsed()))) {
                let Some(Place { stage, activity, .. }) = progress.places().pop() else { continue };
                let replica = replica.index;
                tracing::error!(stage, replica, %activity, "a worker does not end: its thread and its modules are left behind");
                continue;
            }
            match thread.join() {
                Ok(runners) if replica.is_first() => self.ended.extend(runners),
                Ok(runners) => others.extend(runners),
                Err(panic) => tracing::error!(failure = %Failure::of_panic(panic), "a worker thread was lost"),
            }
        }
        others
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
    pub(crate) fn states(&self, frozen_from: FrozenFrom) -> Result<Vec<StageState>, StepError> {
        // This check comes before any read, because a read from a lost host would block forever.
        if let Some(&stage) = self.out_of_reach.first() {
            return Err(StepError::Lost { stage });
        }
        let whole = |stage: usize| self.ended.iter().find(|runner| runner.stage() == stage && runner.is_whole());
        let state = |stage| {
            let runner = whole(stage).ok_or(StepError::Lost { stage })?;
            // If the device itself has failed, the read panics.
            let read = catch_unwind(AssertUnwindSafe(|| runner.state(frozen_from)));
            read.map_err(|panic| StepError::Unreadable { stage, failure: Failure::of_panic(panic) })
        };
        (0..self.stages).map(state).collect()
    }
}
