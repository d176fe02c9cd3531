//! A training run's main loop ([`Loop`]): takes batches, trains, evaluates, saves checkpoints, and logs and shows
//! progress.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use burn::tensor::Device;
use stageline::{Account, EvalReport, Payload, Pipeline, StepError, StepReport, Update};

use crate::data::Data;
use crate::data::prefetch::Batches;
use crate::kernel_messages::after_the_first_step;
use crate::outputs::amount::Amount;
use crate::outputs::log::{Figures, Log};
use crate::outputs::progress::Progress;
use crate::outputs::record;
use crate::outputs::unwritten::Unwritten;
use crate::settings::job::Job;
use crate::settings::values::FlushName;
use crate::terminal::{say, tell};
use crate::training::checkpoints::Keeper;
use crate::training::evaluation::Evaluated;
use crate::training::watch::Watch;

/// A callback of the user's program, which is called after every training step with the step's report and its metrics
/// by name. It may add metrics before they are logged.
pub type OnStep = Box<dyn FnMut(&StepReport, &mut BTreeMap<String, f64>)>;

/// A training run's main loop, with the settings, checkpoint writer and progress bar that it uses.
pub struct Loop<'a> {
    pub job: &'a Job,
    /// The number of completed steps in the checkpoint from which this run resumes; 0 without a checkpoint.
    pub start: usize,
    pub keeper: Keeper,
    pub progress: Progress,
    /// Amount of data per step and epoch, to display the throughput and the number of epochs.
    pub amount: Amount,
    /// Model FLOP utilisation (MFU) at a throughput of one sample per second; a step's MFU is this times its samples
    /// per second. `None` if the devices' peak FLOP/s or the model's FLOPs are unknown.
    pub utilisation: Option<f64>,
    pub on_step: OnStep,
    /// Collects errors from printing or writing the last results, which do not fail the run, so that the program still
    /// gets the trained pipeline.
    pub unwritten: Unwritten,
    /// The evaluation before this run's first step; `None` if no held-out sample has an unmasked target.
    pub evaluated: Option<EvalReport>,
    /// Estimated memory of the training run on each device, in bytes; empty without an estimate. Logged beside each
    /// device's reserved memory after the first step, and then cleared.
    pub estimated: Vec<(Device, u64)>,
}

/// The result of a finished or interrupted training loop: how the loop ended, and how long its steps waited for data.
pub struct Stopped {
    /// Whether the training is complete or was interrupted.
    pub ended: Ended,
    /// The total time that this run's training steps waited for their batches.
    pub waited: Duration,
}

/// The end of the training loop: with a complete training, or before it is complete.
pub enum Ended {
    /// The training is complete: it reached its last step, or stopped early (`--patience`). The value is the last
    /// evaluation of the held-out samples; `None` if there was none.
    Complete(Option<EvalReport>),
    /// A signal or `--stop-after` ended this run before the training was complete.
    Interrupted,
}

impl Loop<'_> {
    /// Runs training steps until the last step, early stopping by `--patience`, the step of `--stop-after`, or a SIGINT
    /// or SIGTERM.
    ///
    /// A last checkpoint is written at the end, even after an error.
    pub fn run<Out: Payload, D: Data>(
        &mut self,
        pipeline: &mut Pipeline<D::Input, Out, D::Target>,
        data: &Arc<D>,
        log: &mut Log,
        evaluate: impl Fn(&mut Pipeline<D::Input, Out, D::Target>, &mut Log, usize) -> Result<Evaluated>,
    ) -> Result<Stopped> {
        let (steps, samples) = (self.start..self.job.training.steps, self.job.training.batch_size);
        let ahead = self.job.running.read_ahead;
        let mut batches = Batches::start(data, steps, samples, ahead, self.keeper.stop_signal())?;
        let ended = self.steps(pipeline, &mut batches, log, evaluate);
        self.progress.end();
        // All stages have completed the same steps, even after an error, so their checkpoint is consistent.
        let kept = self.keeper.save_last(pipeline);
        match ended {
            Ok(stopped) => kept.map(|()| stopped),
            Err(error) => {
                kept.unwrap_or_else(|lost| {
                    tell(format_args!("the steps since the last checkpoint are lost: {lost:#}"))
                });
                Err(error)
            }
        }
    }

    fn steps<In: Payload, Out: Payload, Target: Payload>(
        &mut self,
        pipeline: &mut Pipeline<In, Out, Target>,
        batches: &mut Batches<In, Target>,
        log: &mut Log,
        evaluate: impl Fn(&mut Pipeline<In, Out, Target>, &mut Log, usize) -> Result<Evaluated>,
    ) -> Result<Stopped> {
        let steps = self.job.training.steps;
        self.progress.begin(self.start, steps)?;
        let (mut done, mut watch) = (self.start, Watch::default());
        // Waits for batches of steps whose reports have not arrived. If steps overlap, a batch is taken before the
        // previous step's report arrives.
        let waits = RefCell::new(VecDeque::new());
        self.keeper.step(pipeline, done)?;
        let mut evaluated = self.evaluated.take();
        while done < steps && !self.keeper.interrupts(done) {
            if let Some(reason) = self.keeper.completes(done) {
                self.progress.say(reason)?;
                return Ok(Stopped { ended: Ended::Complete(evaluated), waited: batches.waited() });
            }
            let until = match self.job.running.flush {
                FlushName::Together => done + 1,
                FlushName::Ahead => self.before_next_pause(done).min(steps),
            };
            let (first, mut read_error) = (done, None);
            let keeper = &self.keeper;
            let ahead = (first..until).take_while(|step| *step == first || !keeper.interrupts(*step));
            let read = |_| {
                let before = batches.waited();
                let batch = batches.next().map_err(|error| read_error = Some(error)).ok().flatten();
                waits.borrow_mut().push_back(batches.waited() - before);
                batch
            };
            let (samples, utilisation) = (self.job.training.batch_size as f64, self.utilisation);
            let (progress, on_step) = (&self.progress, &mut self.on_step);
            for report in pipeline.steps(ahead.map_while(read)) {
                let report = report?;
                let utilisation = utilisation.map(|share| share * samples / report.step_time.as_secs_f64());
                let waited = waits.borrow_mut().pop_front().unwrap_or_default();
                let figures = Figures { utilisation, waited, amount: self.amount };
                note(&report, figures, log, on_step)?;
                done += 1;
                let shown = progress.step(&report, figures.utilisation);
                warn(&report, &mut watch);
                after_the_first_step(&std::mem::take(&mut self.estimated));
                if done < steps {
                    shown?;
                    continue;
                }
                // The causes of idle time are computed and shown for the last step only.
                progress.end();
                self.unwritten.unless(shown.and_then(|()| say(causes(&report))));
            }
            read_error.map_or(Ok(()), Err)?;
            self.keeper.step(pipeline, done)?;
            // If a signal prevented any new step, there is nothing new to evaluate.
            let is_due = done > first && done < steps && self.job.training.validates_after(done);
            if is_due && let Some((report, line)) = evaluate(pipeline, log, done)? {
                self.progress.say(line)?;
                self.keeper.evaluated(pipeline, report.loss)?;
                evaluated = Some(report);
            }
        }
        let ended = if done < steps {
            Ended::Interrupted
        } else {
            // If no step was left, the evaluation before the first step is also that after the last one.
            let known = evaluated.filter(|_| done == self.start);
            Ended::Complete(self.evaluate_last(pipeline, known, |pipeline| evaluate(pipeline, log, done))?)
        };
        Ok(Stopped { ended, waited: batches.waited() })
    }

    /// Saves the checkpoint of the last step, and then evaluates the held-out samples, unless the result is `known`.
    /// Errors from writing outputs are collected in [`unwritten`](Self::unwritten).
    fn evaluate_last<In: Payload, Out: Payload, Target: Payload>(
        &mut self,
        pipeline: &mut Pipeline<In, Out, Target>,
        known: Option<EvalReport>,
        evaluate: impl FnOnce(&mut Pipeline<In, Out, Target>) -> Result<Evaluated>,
    ) -> Result<Option<EvalReport>> {
        self.keeper.save(pipeline)?;
        let report = if let Some(report) = known {
            report
        } else {
            let evaluated = match evaluate(pipeline) {
                Err(failed) if failed.is::<StepError>() => return Err(failed),
                evaluated => self.unwritten.unless(evaluated).flatten(),
            };
            let Some((report, line)) = evaluated else { return Ok(None) };
            self.unwritten.unless(say(line));
            report
        };
        self.unwritten.unless(self.keeper.evaluated(pipeline, report.loss));
        Ok(Some(report))
    }

    /// Returns the number of completed steps, greater than `done`, at which training next pauses for a checkpoint or an
    /// evaluation.
    fn before_next_pause(&self, done: usize) -> usize {
        let evaluation = match self.job.training.validate_every {
            0 => usize::MAX,
            every => (done / every + 1).saturating_mul(every),
        };
        self.keeper.due_after(done).min(evaluation)
    }
}

/// Returns a line for the user that explains a training step's idle time: the bubble, and the share of each cause, all
/// in percent of the total worker time (workers x step time).
fn causes(report: &StepReport) -> String {
    let shares = Account::shares(&report.recording.accounts(), report.step_time.as_secs_f64());
    let percent = shares.map(|(cause, share)| (cause, 100.0 * share)).into_iter();
    let causes = percent.filter(|(_, percent)| percent.abs() >= 0.05);
    let named = |(cause, percent)| format!("{} {percent:.1}%", Account::words_for(cause));
    let causes: Vec<_> = causes.map(named).collect();
    let (bubble, clock) = (100.0 * report.bubble(), report.recording.clock());
    format!("bubble of the last step {bubble:.1}% by the {clock}: {}", causes.join(", "))
}

/// Calls the program's `on_step` callback with a step's report, and then logs the report with the step's `figures`.
fn note(report: &StepReport, figures: Figures, log: &mut Log, on_step: &mut OnStep) -> Result<()> {
    let mut metrics = record::metrics(&report.metrics);
    on_step(report, &mut metrics);
    log.step(report, figures, metrics)
}

/// Warns the user if a step shows a sign of failing training: a jump of the gradient norm, a parameter whose gradient
/// stays 0, or a layer with a very large or very small update.
fn warn(report: &StepReport, watch: &mut Watch) {
    let gradient_norm = match report.update {
        Update::Stepped { gradient_norm, .. } => gradient_norm,
        Update::NoWeight => return watch.no_target(report.step).iter().for_each(|warning| tracing::warn!("{warning}")),
        _ => return,
    };
    let health: Vec<_> = report.health.iter().map(record::health).collect();
    let warnings = watch.jump(report.step, gradient_norm, &report.gradient_norms).into_iter();
    let warnings = warnings.chain(watch.dead(report.step, &report.gradient_norms));
    warnings.chain(watch.ratios(report.step, &health)).for_each(|warning| tracing::warn!("{warning}"));
}
