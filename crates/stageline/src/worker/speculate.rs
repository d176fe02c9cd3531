//! Speculative steps: a stage steps before it knows the verdict, and rolls back when the verdict differs from the assumed one.

use crate::worker::Last;
use crate::worker::Worker;

use crate::failure::activity::{Activity, During};
use crate::failure::stop::Stopped;
use crate::update::flush::Verdict;
use stageline_nn::forward::after_step;

impl Worker {
    /// What comes after a step that all stages have made.
    pub(super) fn commit(&mut self) {
        if self.made.take().is_some() {
            self.runners.iter_mut().for_each(|runner| runner.commit());
            after_step::do_kept();
        }
    }

    /// What comes after a step that not all stages have made.
    pub(super) fn roll_back(&mut self) {
        self.runners.iter_mut().for_each(|runner| runner.roll_back());
        after_step::skipped();
    }

    /// Asks how the step before is to end, if that was not known; whether it ended so, and what was done since stands.
    pub(super) fn settle(&mut self) -> Result<bool, Stopped> {
        if let Last::Assumed(assumed) = self.last {
            let verdict = self.verdict()?;
            self.heard(assumed, verdict);
        }
        match std::mem::replace(&mut self.last, Last::Known) {
            Last::Known | Last::Assumed(_) => Ok(true),
            Last::Mispredicted(verdict) => {
                self.runners.iter_mut().for_each(|runner| runner.forget());
                after_step::skipped();
                if let Some(step) = self.made {
                    self.diary.during = During::Step(step);
                    self.roll_back();
                    self.conclude_as(step, verdict)?;
                }
                Ok(false)
            }
        }
    }

    /// Looks whether the verdict on the step before has come: if it is as assumed, that step need not be kept any longer.
    pub(super) fn look_back(&mut self) -> Result<(), Stopped> {
        if let Last::Assumed(assumed) = self.last
            && let Some(verdict) = self.waits.try_receive(&self.line.verdicts)?
        {
            self.diary.enter(self.diary.stage, Activity::Verdict);
            self.heard(assumed, verdict);
            let read = self.runners.first().map(|runner| self.gauges.read(runner.device()));
            self.diary.leave(self.waits.take(), read.unwrap_or_default());
        }
        Ok(())
    }

    pub(super) fn heard(&mut self, assumed: Verdict, verdict: Verdict) {
        if verdict == assumed {
            self.last = Last::Known;
            self.commit();
        } else {
            self.last = Last::Mispredicted(verdict);
        }
    }
}
