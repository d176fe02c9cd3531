//! Runs training steps: sends a step to the workers, decides the verdict on the step, and creates the [`StepReport`].
//! The verdict says whether all stages step their optimizers or skip the step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stageline_schedule::Event;
use tracing::{Span, field};

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::model::effective_batch::BatchChange;
use crate::model::micro_batches::MicroBatches;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::report::{LossTerm, Metric, StageReport, StepReport, Update};
use crate::pipeline::workers::{Ended, metrics, terms, total_loss};
use crate::recording::Recording;
use crate::recording::events::busy;
use crate::runner::pass::{Context, Pass};
use crate::update::clip::Scaling;
use crate::update::flush::{Flush, Sums, Verdict};
use crate::update::health::ParameterHealth;
use crate::update::noise::NoiseReport;
use crate::update::not_finite::{Culprit, OnNonFinite, Origin};
use crate::worker::messages::{Asked, Stepped};

/// A training step that the workers are running, and whose verdict (step the optimizers, or skip the step) is not known
/// yet.
pub(crate) struct Begun<In, Target> {
    batch: MicroBatches<In, Target>,
    /// Each replica's context for this step: step number, loss weights, loss scale and GPU transfer order.
    contexts: Vec<Arc<Context>>,
    flush: Flush,
    began: Instant,
    /// Whether this training step began while the previous step was still running, before the verdict on it was known.
    behind: bool,
    span: Span,
}

impl<In, Target> Begun<In, Target> {
    /// Whether the next training step may begin before the verdict on this step (step or skip) is known. True if the
    /// stages step their optimizers on an assumed verdict; false if they wait for the actual verdict.
    pub(crate) fn may_be_followed(&self) -> bool {
        matches!(self.flush, Flush::Ahead(_))
    }

    /// Returns the batch of a discarded training step, so that the step can begin again.
    pub(crate) fn into_batch(self) -> MicroBatches<In, Target> {
        self.batch
    }

    /// Returns the context of the step in the first replica, for its step number and loss scale. These are the same in
    /// all replicas.
    fn context(&self) -> &Context {
        &self.contexts[0]
    }
}

/// The results of an ended training step, from which its [`StepReport`] is made.
struct Concluded {
    step: usize,
    loss_scale: f64,
    terms: Vec<LossTerm>,
    metrics: Vec<Metric>,
    stages: Vec<StageReport>,
    reductions: usize,
    gradient_norms: Vec<(Arc<str>, f64)>,
    health: Vec<ParameterHealth>,
    noise: Option<NoiseReport>,
    update: Update,
    events: Vec<Vec<Event>>,
    /// The duration of the training step, until the last worker finished it. It excludes a rerun that searches for the
    /// first non-finite result.
    took: Duration,
}

impl<In: Payload, Out: Payload, Target: Payload> Pipeline<In, Out, Target> {
    /// Trains on one batch without overlap: every stage waits for the verdict (step or skip), which depends on all
    /// stages, before it steps its optimizer.
    pub(crate) fn train(&mut self, batch: MicroBatches<In, Target>) -> Result<StepReport, Ended> {
        let begun = self.launch(batch, Flush::Together)?;
        self.complete(&begun, false)
    }

    /// Counts and reports a step whose batch has no unmasked target, without running it on the workers.
    pub(crate) fn pass_over(&mut self) -> Result<StepReport, Ended> {
        let span = span_of_step(self.done.steps).entered();
        let (plan, loss_scale) = (self.plan(), self.stepping.scaler.scale());
        let (stages, events) = (vec![StageReport::default(); plan.stages()], vec![Vec::new(); self.workers.running()]);
        let (step, took) = (self.done.steps, self.workers.began().elapsed());
        let update = Update::NoWeight;
        self.commit_step(step, update)?;
        let report = self.report(Concluded {
            step,
            loss_scale,
            terms: Vec::new(),
            metrics: Vec::new(),
            stages,
            reductions: 0,
            gradient_norms: Vec::new(),
            health: Vec::new(),
            noise: None,
            update,
            events,
            took,
        });
        note_figures(&span, &report);
        Ok(report)
    }

    /// Starts the next training step on all workers, and returns the begun step. `flush` decides when stages step their
    /// optimizers: `Together` waits for the verdict (step or skip), which depends on all stages, and `Ahead` steps
    /// immediately on an assumed verdict.
    pub(crate) fn launch(&mut self, batch: MicroBatches<In, Target>, flush: Flush) -> Result<Begun<In, Target>, Ended> {
        let span = span_of_step(self.done.steps);
        self.warn_of_change(batch.weights.all_samples());
        let contexts = self.contexts_of_step(&batch.weights);
        self.start_on(Begun { batch, contexts, flush, began: self.workers.began(), behind: false, span })
    }

    /// Starts one more training step on all workers, before the verdict (step or skip) on the running step is known.
    /// Returns the begun step.
    pub(crate) fn launch_behind(&mut self, batch: MicroBatches<In, Target>) -> Result<Begun<In, Target>, Ended> {
        let span = span_of_step(self.done.steps + 1);
        self.warn_of_change(batch.weights.all_samples());
        let contexts = self.contexts_behind(&batch.weights);
        let flush = Flush::Ahead(self.stepping.flush.assumed(self.done.steps + 1));
        self.start_on(Begun { batch, contexts, flush, began: Instant::now(), behind: true, span })
    }

    /// Starts a training step on all workers: sends them their commands and the batch. Returns the begun step.
    fn start_on(&mut self, begun: Begun<In, Target>) -> Result<Begun<In, Target>, Ended> {
        self.overlap.is_in_flight = true;
        let entered = begun.span.clone().entered();
        let Begun { flush, began, behind, .. } = begun;
        let step = begun.context().step;
        let (during, clock) = (During::Step(step), self.stepping.clock(step));
        let asked = self.asked(&begun.contexts, Pass::Train).into_iter();
        let for_step = |asked| Asked { during, began, clock, flush, behind, ..asked };
        self.workers.ask(&begun.batch, asked.map(for_step).collect())?;
        drop(entered);
        Ok(begun)
    }

    /// Waits for the end of a training step and returns its report. If the stages assumed a wrong verdict (step or
    /// skip, with or without clipping), they roll back the step and make it again. The next step, if it has begun
    /// (`followed`), is then discarded.
    pub(crate) fn complete(&mut self, begun: &Begun<In, Target>, followed: bool) -> Result<StepReport, Ended> {
        let (context, config) = (begun.context(), self.stepping.flush);
        let _entered = begun.span.enter();
        let sums = self.workers.finished(self.replicas())?.sums(&begun.contexts)?;
        let verdict = sums.verdict(config, context.step);
        self.overlap.as_assumed = verdict == config.assumed(context.step);
        let is_made = begun.flush == Flush::Ahead(verdict);
        let alone = begun.may_be_followed() && !followed;
        if !is_made {
            self.answer(verdict, alone)?;
        }
        let stepped = self.workers.concluded_stages(verdict)?;
        let mut events = self.workers.recorded()?;
        let took = begun.began.elapsed().min(self.overlap.last_end.elapsed());
        self.overlap.last_end = Instant::now();
        if begun.behind {
            shift_to_first_event(&mut events);
        }
        let update = self.update(begun, &sums, verdict)?;
        self.commit_step(context.step, update)?;
        if is_made {
            // The step is complete on all stages, so a later failure of a worker is left for the next step to report.
            let _ = self.answer(verdict, alone);
        }
        self.overlap.is_in_flight = followed && is_made;
        let report = |stage: &Stepped| StageReport {
            busy: busy(events.iter().flatten().filter(|event| event.stage == stage.stage)),
            learning_rate: stage.conclusion.learning_rate,
        };
        let named = |(id, health)| ParameterHealth { name: self.layout.name(id).to_string(), ..health };
        let report = self.report(Concluded {
            step: context.step,
            loss_scale: context.loss_scale,
            terms: terms(&sums.losses, &begun.batch.weights.total),
            metrics: metrics(self.scoring.metrics, &sums.metrics, &begun.batch.weights.total),
            stages: stepped.iter().filter(|stage| stage.replica.is_first()).map(report).collect(),
            reductions: sums.reductions,
            gradient_norms: sums.gradient_norms.iter().map(|(id, norm)| (self.layout.name(*id), *norm)).collect(),
            health: stepped.into_iter().flat_map(|stage| stage.conclusion.health).map(named).collect(),
            noise: sums.noise,
            update,
            events,
            took,
        });
        if update.stepped() {
            self.done.learning_rate = report.stages.first().and_then(|stage| stage.learning_rate);
        }
        note_figures(&begun.span, &report);
        Ok(report)
    }

    /// Cancels the running training step. Waits until all stages have finished their forward and backward passes, and
    /// rolls back the stages that have stepped their optimizers. If that fails, the pipeline stops, and the next step,
    /// evaluation or inference returns the error. A checkpoint has the state after the last step that was reported.
    pub(crate) fn undo(&mut self) {
        self.workers.begin(During::Step(self.done.steps));
        let undone = self.undone();
        self.overlap.is_in_flight = false;
        self.overlap.error = undone.err().map(|ended| self.end(ended));
    }

    /// Waits for the forward and backward passes of the running step, and sends the verdict `Skip` (no optimizer
    /// steps). Then waits until every stage has skipped or rolled back the step. Returns an error if a worker stops
    /// before that.
    fn undone(&self) -> Result<(), Ended> {
        self.workers.finished(self.replicas())?;
        self.answer(Verdict::Skip, true)?;
        self.workers.concluded_stages(Verdict::Skip)?;
        self.workers.recorded().map(drop)
    }

    /// Stops the pipeline in the middle of a training step. The step is rolled back if only some stages have made it.
    pub(crate) fn abandon(&mut self) {
        self.overlap.is_in_flight = false;
        let during = self.workers.during();
        self.end(Ended::ByCaller(StepError::Stopped { during }));
    }

    /// Sends the verdict on a training step (step or skip) to all workers, which receive it during the next step. If no
    /// step follows (`alone`), also commands the workers to receive it immediately.
    fn answer(&self, verdict: Verdict, alone: bool) -> Result<(), Ended> {
        self.workers.tell(verdict)?;
        if alone { self.workers.settle() } else { Ok(()) }
    }

    /// Counts a training step that all stages have made or skipped, and tells the workers that this step can no longer
    /// be rolled back.
    fn commit_step(&mut self, step: usize, update: Update) -> Result<(), Ended> {
        self.workers.commit(step + 1)?;
        self.done.steps = step + 1;
        if update.stepped() {
            self.done.optimizer_steps += 1;
            self.stepping.scaler.stepped();
        }
        Ok(())
    }

    /// Creates the report of a training step from its results.
    fn report(&self, concluded: Concluded) -> StepReport {
        let Concluded { step, loss_scale, terms, metrics, stages, reductions, update, events, took, .. } = concluded;
        StepReport {
            step,
            loss: if terms.is_empty() { f64::NAN } else { total_loss(&terms) },
            terms,
            metrics,
            loss_scale,
            step_time: took,
            stages,
            micro_batches: self.plan().micro_batches(),
            replicas: self.replicas(),
            reductions,
            recording: Recording::new(Arc::clone(&self.plan), took, events, self.stepping.clock(step)),
            update,
            gradient_norms: concluded.gradient_norms,
            health: concluded.health,
            noise: concluded.noise,
        }
    }

    /// Logs a warning if a training batch's number of samples differs from the number for which the learning rates were
    /// chosen (the user's setting `tuned_for`). Only the first such batch logs a warning.
    fn warn_of_change(&mut self, samples: usize) {
        if let Some(change) = self.stepping.tuned_for.and_then(|tuned_for| BatchChange::between(tuned_for, samples)) {
            self.stepping.tuned_for = None;
            tracing::warn!("{change}");
        }
    }

    /// Returns the step's effect on the parameters, as its report shows it: updated, or skipped for a reason. If the
    /// loss or a gradient is not finite, reruns the step to find the first non-finite result.
    fn update(&mut self, begun: &Begun<In, Target>, sums: &Sums, verdict: Verdict) -> Result<Update, Ended> {
        if let Verdict::Step { scaling, .. } = verdict {
            return Ok(Update::Stepped { gradient_norm: sums.gradient_norm, clipped: scaling != Scaling::Keep });
        }
        let culprit = self.inspect(&begun.batch, &begun.contexts)?;
        self.not_finite(culprit, begun.context().loss_scale)
    }

    /// Handles a step whose loss or gradients are not finite. Lowers the loss scale if a lower one can help. Otherwise
    /// skips the step or returns an error, as configured. Returns the effect of the step on the parameters.
    fn not_finite(&mut self, culprit: Option<Culprit>, loss_scale: f64) -> Result<Update, Ended> {
        let step = self.done.steps;
        if self.back_off(culprit) {
            tracing::info!(
                step,
                loss_scale,
                lower = self.stepping.scaler.scale(),
                culprit = culprit.as_ref().map(field::display),
                "gradients overflow: the step is skipped"
            );
            return Ok(Update::Overflow { loss_scale, culprit });
        }
        match self.stepping.flush.on_non_finite {
            OnNonFinite::Stop => Err(Ended::ByCaller(StepError::NonFinite { step, culprit })),
            OnNonFinite::Skip => {
                let shown = culprit.as_ref().map(field::display);
                tracing::warn!(step, culprit = shown, "the loss or a gradient is not finite: the step is skipped");
                Ok(Update::NonFinite { culprit })
            }
        }
    }

    /// Lowers the loss scale after a non-finite step if a lower scale can help, and returns whether the scale was
    /// lowered. A lower scale cannot help if the input or the result of a forward pass was not finite.
    pub(crate) fn back_off(&mut self, culprit: Option<Culprit>) -> bool {
        culprit.is_none_or(|culprit| culprit.origin == Origin::Backward) && self.stepping.scaler.back_off()
    }
}

fn span_of_step(step: usize) -> Span {
    let (loss, weight, bubble) = (field::Empty, field::Empty, field::Empty);
    tracing::debug_span!("step", step, loss, weight, bubble)
}

/// Records a step's loss, loss weight and bubble (the workers' idle fraction of the step) in the step's tracing span.
fn note_figures(span: &Span, report: &StepReport) {
    span.record("loss", report.loss).record("weight", report.weight()).record("bubble", report.bubble());
}

fn shift_to_first_event(events: &mut [Vec<Event>]) {
    let first = events.iter().flatten().map(|event| event.start).min().unwrap_or_default();
    for event in events.iter_mut().flatten() {
        (event.start, event.end) = (event.start - first, event.end - first);
    }
}
