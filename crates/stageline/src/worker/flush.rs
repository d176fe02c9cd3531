//! The flush: the end of a step on one worker. It reduces gradient sums over replicas, and sends each stage's outcome
//! (losses, gradient norms) to the caller. It then waits for the verdict (step the optimizers, or skip the step) and
//! carries it out.

use stageline_schedule::Activity;

use crate::worker::Worker;
use crate::worker::last_verdict::Last;

use crate::worker::spans::note_wait;
use crate::worker::spans::span;

use crate::failure::stop::Stopped;
use crate::update::flush::{Flush, Verdict};
use crate::worker::messages::Stepped;
use stageline_nn::after_step;
use stageline_nn::kernels::use_huge_pages;

impl Worker {
    /// Ends a training step on this worker's stages: each stage steps its optimizer or skips the step, as the caller's
    /// common verdict for all stages says. If `flush` allows it and this worker's losses and gradients are finite
    /// (`finite`), the stages act on an assumed verdict without waiting; otherwise they wait for the true one.
    pub(super) fn flush(&mut self, step: usize, flush: Flush, finite: bool) -> Result<(), Stopped> {
        match flush {
            Flush::Ahead(assumed) if finite => {
                self.runners.iter_mut().for_each(|runner| runner.keep_sums());
                self.conclude(step, assumed)?;
                self.last = Last::Assumed(assumed);
            }
            Flush::Ahead(_) => {
                let verdict = self.verdict()?;
                // Other stages have stepped with the assumed verdict and exchange the values of tied parameters. This
                // worker takes its part in that exchange, so that no stage waits for it and the channels are empty.
                self.runners.iter_mut().try_for_each(|runner| runner.publish(&self.waits))?;
                self.runners.iter_mut().try_for_each(|runner| runner.ignore(&self.waits))?;
                self.conclude(step, verdict)?;
                self.last = Last::Mispredicted(verdict);
            }
            Flush::Together => {
                let verdict = self.verdict()?;
                self.conclude(step, verdict)?;
            }
        }
        Ok(())
    }

    /// Completes the gradient sums of the worker's stages at the end of a step. With several data-parallel replicas,
    /// replica 0 adds up the sums of all replicas, and the worker records this reduction as an event and a tracing
    /// span.
    pub(super) fn reduce(&mut self, step: usize) -> Result<(), Stopped> {
        for runner in &mut self.runners {
            if self.replica.of == 1 {
                runner.reduce(step, &self.waits)?;
                continue;
            }
            self.diary.enter(runner.stage(), Activity::Reduce);
            let span = span(&self.diary).entered();
            runner.reduce(step, &self.waits)?;
            let waited = self.waits.take();
            note_wait(&span, Activity::Reduce, waited);
            self.diary.leave(waited, self.gauges.read(runner.device()));
        }
        Ok(())
    }

    /// Ends a step, evaluation or inference on each of the worker's stages, and sends each stage's outcome, such as its
    /// losses, to the caller. Returns true if all losses and gradient norms are finite; only then may the stages act on
    /// an assumed verdict.
    pub(super) fn finish(&mut self) -> Result<bool, Stopped> {
        let mut finite = true;
        for runner in &mut self.runners {
            self.diary.enter(runner.stage(), Activity::Finish);
            let _entered = span(&self.diary).entered();
            let outcome = runner.finish(&self.waits)?;
            finite &= outcome.is_finite();
            // The event ends before the outcome is sent, because other threads may continue as soon as the caller has
            // the outcome.
            self.diary.leave(self.waits.take(), self.gauges.read(runner.device()));
            self.waits.send(&self.channels.replies.finished, outcome)?;
        }
        Ok(finite)
    }

    /// Waits for the caller's verdict on a step: whether all stages step their optimizers, and how gradients are
    /// clipped. The caller decides after it has received the losses and gradient norms of all stages.
    pub(super) fn verdict(&mut self) -> Result<Verdict, Stopped> {
        self.diary.enter(self.diary.stage, Activity::Verdict);
        let span = span(&self.diary).entered();
        let verdict = self.waits.receive(&self.channels.verdicts)?;
        let waited = self.waits.take();
        note_wait(&span, Activity::Verdict, waited);
        let read = self.runners.first().map(|runner| self.gauges.read_gpu(runner.device()));
        self.diary.leave(waited, read.unwrap_or_default());
        Ok(verdict)
    }

    /// Ends a step on each of the worker's stages as the true or assumed `verdict` says (step the optimizers, or skip).
    /// First sets aside the updates that the step's forward passes registered with `after_step`, such as new running
    /// statistics, so that they are not mixed with those of the next step.
    pub(super) fn conclude(&mut self, step: usize, verdict: Verdict) -> Result<(), Stopped> {
        after_step::keep();
        self.conclude_stages(step, verdict)
    }

    /// Ends a step on each of the worker's stages as `verdict` says (step the optimizers, or skip), moves the memory of
    /// new matrices into huge pages, and sends each stage's report to the caller.
    ///
    /// Forward passes register updates with `after_step`, such as new running statistics, which run when their step is
    /// final. The caller must have set these updates aside (`after_step::keep`). Unless the optimizers step and keep
    /// the new parameters, this function discards the updates without running them.
    pub(super) fn conclude_stages(&mut self, step: usize, verdict: Verdict) -> Result<(), Stopped> {
        self.uncommitted = matches!(verdict, Verdict::Step { .. } | Verdict::Rehearse { .. }).then_some(step);
        let mut concluded = Vec::with_capacity(self.runners.len());
        for runner in &mut self.runners {
            let stage = runner.stage();
            self.diary.enter(stage, Activity::OptimizerStep);
            let conclusion = {
                let _entered = span(&self.diary).entered();
                runner.conclude(verdict, &self.waits)?
            };
            self.diary.leave(self.waits.take(), self.gauges.read(runner.device()));
            self.diary.enter(stage, Activity::Follow);
            let span = span(&self.diary).entered();
            runner.follow(verdict, &self.waits)?;
            let waited = self.waits.take();
            note_wait(&span, Activity::Follow, waited);
            self.diary.leave(waited, self.gauges.read(runner.device()));
            concluded.push(Stepped { replica: self.replica, stage, verdict, conclusion });
        }
        // The watchdog must see that this worker computes, and does not wait for tied stages.
        self.diary.enter(self.diary.stage, Activity::OptimizerStep);
        use_huge_pages();
        if !verdict.counts() {
            self.uncommitted = None;
            after_step::forget_kept();
        }
        concluded.into_iter().try_for_each(|stepped| self.waits.send(&self.channels.replies.stepped, stepped))
    }
}
