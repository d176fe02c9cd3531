//! Speculative steps: a worker's stages step their optimizers before the common verdict (step, or skip the step) is
//! known, and roll back if this verdict differs from the assumed one.
//!
//! A step is committed when its verdict equals the assumed verdict, or when the caller's next command shows that all
//! stages have completed the step. After a misprediction the step is rolled back and ended again with the true verdict,
//! and work on the following step is discarded.

use stageline_schedule::Activity;

use crate::worker::Worker;
use crate::worker::last_verdict::Last;

use crate::failure::activity::During;
use crate::failure::stop::Stopped;
use crate::update::flush::Verdict;
use stageline_nn::after_step;

impl Worker {
    /// Makes the worker's last training step final, after all stages have completed it. Drops the state from before the
    /// step, and runs the updates (such as new running statistics) that the step's forward passes registered with
    /// `after_step`.
    pub(super) fn commit(&mut self) {
        if self.uncommitted.take().is_some() {
            self.runners.iter_mut().for_each(|runner| runner.commit());
            after_step::do_kept();
        }
    }

    /// Rolls back the worker's last training step, because not all stages have completed it or it ended with a wrong
    /// verdict. Also discards the updates (such as new running statistics) that forward passes of the following step
    /// registered with `after_step`.
    pub(super) fn roll_back(&mut self) {
        self.runners.iter_mut().for_each(|runner| runner.roll_back());
        after_step::skipped();
    }

    /// Ensures that the worker's last step has ended with the true verdict, which says whether all stages step their
    /// optimizers and how gradients are clipped. After an assumed verdict, waits for the true one. If the two differ,
    /// rolls the step back and ends it again with the true verdict.
    ///
    /// Returns false if the two differ, so that the work on the following step is discarded, and true otherwise.
    pub(super) fn settle(&mut self) -> Result<bool, Stopped> {
        if let Last::Assumed(assumed) = self.last {
            let verdict = self.verdict()?;
            self.note_verdict(assumed, verdict);
        }
        match std::mem::replace(&mut self.last, Last::Known) {
            Last::Known | Last::Assumed(_) => Ok(true),
            Last::Mispredicted(verdict) => {
                self.runners.iter_mut().for_each(|runner| runner.forget());
                after_step::skipped();
                if let Some(step) = self.uncommitted {
                    self.diary.during = During::Step(step);
                    self.roll_back();
                    self.conclude_stages(step, verdict)?;
                }
                Ok(false)
            }
        }
    }

    /// Receives the true verdict (step the optimizers, or skip) on the worker's last step if it has already arrived;
    /// does not wait. If it equals the assumed verdict, commits the step immediately, which frees the copies of the
    /// state from before that step.
    pub(super) fn poll_verdict(&mut self) -> Result<(), Stopped> {
        if let Last::Assumed(assumed) = self.last
            && let Some(verdict) = self.waits.try_receive(&self.channels.verdicts)?
        {
            self.diary.enter(self.diary.stage, Activity::Verdict);
            self.note_verdict(assumed, verdict);
            let read = self.runners.first().map(|runner| self.gauges.read(runner.device()));
            self.diary.leave(self.waits.take(), read.unwrap_or_default());
        }
        Ok(())
    }

    /// Compares the true `verdict` on the worker's last step (step the optimizers, or skip) with the assumed one.
    /// Commits the step if they are equal, and otherwise marks it to be rolled back later.
    pub(super) fn note_verdict(&mut self, assumed: Verdict, verdict: Verdict) {
        if verdict == assumed {
            self.last = Last::Known;
            self.commit();
        } else {
            self.last = Last::Mispredicted(verdict);
        }
    }
}
