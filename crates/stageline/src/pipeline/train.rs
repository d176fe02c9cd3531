//! A step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::model::batch::MicroBatches;
use crate::model::effective_batch::BatchChange;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::report::{LossTerm, StageReport, StepReport, Update};
use crate::pipeline::workers::{Ended, terms, total_loss};
use crate::recording::Recording;
use crate::recording::events::{Event, busy};
use crate::runner::pass::{Context, Pass};
use crate::update::clip::Scaling;
use crate::update::finite::{Culprit, OnNonFinite, Origin};
use crate::update::flush::{Flush, Sums, Verdict};
use crate::update::health::ParameterHealth;
use crate::worker::messages::{Asked, Stepped};

/// A step that all workers were asked for.
pub(crate) struct Begun<In, Target> {
    batch: MicroBatches<In, Target>,
    /// Of each replica.
    contexts: Vec<Arc<Context>>,
    flush: Flush,
    began: Instant,
    /// Whether it began before it was known how the step before ends.
    behind: bool,
}

impl<In, Target> Begun<In, Target> {
    /// Whether another step may begin before it is known how this one ends.
    pub(crate) fn may_be_followed(&self) -> bool {
        matches!(self.flush, Flush::Ahead(_))
    }

    /// What it began with.
    pub(crate) fn into_batch(self) -> MicroBatches<In, Target> {
        self.batch
    }

    /// What all replicas know.
    fn context(&self) -> &Context {
        &self.contexts[0]
    }
}

/// What comes of a step.
struct Concluded {
    step: usize,
    loss_scale: f64,
    /// None where nothing was computed.
    terms: Vec<LossTerm>,
    stages: Vec<StageReport>,
    reductions: usize,
    health: Vec<ParameterHealth>,
    update: Update,
    /// Of each worker.
    events: Vec<Vec<Event>>,
    /// Up to the last worker's end, without a second run.
    took: Duration,
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// A step with this batch.
    pub(crate) fn train(&mut self, batch: MicroBatches<In, Target>) -> Result<StepReport, Ended> {
        let begun = self.launch(batch, Flush::Together)?;
        self.complete(&begun, false)
    }

    /// A step with a batch that weighs nothing.
    pub(crate) fn pass_over(&mut self) -> Result<StepReport, Ended> {
        let (plan, loss_scale) = (self.plan(), self.stepping.scaler.scale());
        let (stages, events) = (vec![StageReport::default(); plan.stages()], vec![Vec::new(); self.workers.running()]);
        let (terms, reductions, health, step, took) =
            (Vec::new(), 0, Vec::new(), self.done.steps, self.workers.began().elapsed());
        let update = Update::NoWeight;
        self.over(step, update)?;
        Ok(self.report(Concluded { step, loss_scale, terms, stages, reductions, health, update, events, took }))
    }

    /// Asks all workers for the next step.
    pub(crate) fn launch(&mut self, batch: MicroBatches<In, Target>, flush: Flush) -> Result<Begun<In, Target>, Ended> {
        self.warn_of_change(batch.weights.all_samples());
        let contexts = self.contexts(&batch.weights, &batch.weights.total);
        self.start_on(Begun { batch, contexts, flush, began: self.workers.began(), behind: false })
    }

    /// Asks all workers for the step behind the next one, on which they are.
    pub(crate) fn launch_behind(&mut self, batch: MicroBatches<In, Target>) -> Result<Begun<In, Target>, Ended> {
        self.warn_of_change(batch.weights.all_samples());
        let contexts = self.contexts_behind(&batch.weights);
        let flush = Flush::Ahead(self.stepping.flush.assumed(self.done.steps + 1));
        self.start_on(Begun { batch, contexts, flush, began: Instant::now(), behind: true })
    }

    fn start_on(&mut self, begun: Begun<In, Target>) -> Result<Begun<In, Target>, Ended> {
        self.overlap.is_in_flight = true;
        let Begun { flush, began, behind, .. } = begun;
        let step = begun.context().step;
        let (during, clock) = (During::Step(step), self.stepping.clock(step));
        let asked = self.asked(&begun.contexts, Pass::Train).into_iter();
        let of_step = |asked| Asked { during, began, clock, flush, behind, ..asked };
        self.workers.ask(&begun.batch, asked.map(of_step).collect())?;
        Ok(begun)
    }

    /// Ends a step. Where stages have made it ahead of its verdict, and that is another than they took it to be, they put it right,
    /// and what has begun behind it is void.
    pub(crate) fn complete(&mut self, begun: &Begun<In, Target>, followed: bool) -> Result<StepReport, Ended> {
        let (context, config) = (begun.context(), self.stepping.flush);
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
            from_the_first(&mut events);
        }
        let update = self.update(begun, &sums, verdict)?;
        self.over(context.step, update)?;
        if is_made {
            // If a worker has failed meanwhile, that is for the next step to tell: this one is made.
            let _ = self.answer(verdict, alone);
        }
        self.overlap.is_in_flight = followed && is_made;
        let report = |stage: &Stepped| StageReport {
            busy: busy(events.iter().flatten().filter(|event| event.stage == stage.stage)),
            learning_rate: stage.conclusion.learning_rate,
        };
        Ok(self.report(Concluded {
            step: context.step,
            loss_scale: context.loss_scale,
            terms: terms(&sums.losses, &begun.batch.weights.total),
            stages: stepped.iter().filter(|stage| stage.replica.is_first()).map(report).collect(),
            reductions: sums.reductions,
            health: stepped.into_iter().flat_map(|stage| stage.conclusion.health).collect(),
            update,
            events,
            took,
        }))
    }

    /// Undoes a step that was launched ahead of its verdict, when workers are done with it.
    pub(crate) fn undo(&mut self) {
        self.workers.begin(During::Step(self.done.steps));
        let undone = self.undone();
        self.overlap.is_in_flight = false;
        self.overlap.error = undone.err().map(|ended| self.end(ended));
    }

    fn undone(&self) -> Result<(), Ended> {
        self.workers.finished(self.replicas())?;
        self.answer(Verdict::Skip, true)?;
        self.workers.concluded_stages(Verdict::Skip)?;
        self.workers.recorded().map(drop)
    }

    /// Gives up whatever workers are in the middle of, and all that not all of them have made.
    pub(crate) fn abandon(&mut self) {
        self.overlap.is_in_flight = false;
        let during = self.workers.during();
        self.end(Ended::ByCaller(StepError::Stopped { during }));
    }

    /// Tells workers how a step ends; where nothing is behind it, they have to be told to ask.
    fn answer(&self, verdict: Verdict, alone: bool) -> Result<(), Ended> {
        self.workers.tell(verdict)?;
        if alone { self.workers.settle() } else { Ok(()) }
    }

    /// All stages have made the step, or passed it over.
    fn over(&mut self, step: usize, update: Update) -> Result<(), Ended> {
        self.workers.commit(step + 1)?;
        self.done.steps = step + 1;
        if update.stepped() {
            self.done.optimizer_steps += 1;
            self.stepping.scaler.stepped();
        }
        Ok(())
    }

    fn report(&mut self, concluded: Concluded) -> StepReport {
        let Concluded { step, loss_scale, terms, stages, reductions, health, update, events, took } = concluded;
        let longest = events.iter().flatten().map(Event::worked).max();
        self.workers.note_action(longest.unwrap_or_default());
        StepReport {
            step,
            loss: if terms.is_empty() { f64::NAN } else { total_loss(&terms) },
            terms,
            loss_scale,
            step_time: took,
            stages,
            micro_batches: self.plan().micro_batches(),
            replicas: self.replicas(),
            reductions,
            recording: Recording::new(Arc::clone(&self.plan), took, events, self.stepping.clock(step)),
            update,
            health,
        }
    }

    /// Once.
    fn warn_of_change(&mut self, samples: usize) {
        if let Some(change) = self.stepping.tuned_for.and_then(|tuned_for| BatchChange::between(tuned_for, samples)) {
            self.stepping.tuned_for = None;
            tracing::warn!("{change}");
        }
    }

    /// What became of a step; one that is not finite is run again, to see why.
    fn update(&mut self, begun: &Begun<In, Target>, sums: &Sums, verdict: Verdict) -> Result<Update, Ended> {
        if let Verdict::Step { scaling, .. } = verdict {
            return Ok(Update::Stepped { gradient_norm: sums.gradient_norm, clipped: scaling != Scaling::Keep });
        }
        let culprit = self.inspect(&begun.batch, &begun.contexts)?;
        self.not_finite(culprit, begun.context().loss_scale)
    }

    /// What is made of a step that is not finite.
    fn not_finite(&mut self, culprit: Option<Culprit>, loss_scale: f64) -> Result<Update, Ended> {
        let step = self.done.steps;
        if self.back_off(culprit) {
            tracing::info!(
                step,
                loss_scale,
                lower = self.stepping.scaler.scale(),
                ?culprit,
                "gradients overflow: the step is skipped"
            );
            return Ok(Update::Overflow { loss_scale, culprit });
        }
        match self.stepping.flush.on_non_finite {
            OnNonFinite::Stop => Err(Ended::ByCaller(StepError::NonFinite { step, culprit })),
            OnNonFinite::Skip => {
                tracing::warn!(step, ?culprit, "the loss or a gradient is not finite: the step is skipped");
                Ok(Update::NonFinite { culprit })
            }
        }
    }

    /// Lowers the scale of the loss, if that can help: what a forward made, or came with the batch, is not for its scale.
    pub(crate) fn back_off(&mut self, culprit: Option<Culprit>) -> bool {
        culprit.is_none_or(|culprit| culprit.origin == Origin::Backward) && self.stepping.scaler.back_off()
    }
}

/// Counts times from when the first worker began.
fn from_the_first(events: &mut [Vec<Event>]) {
    let first = events.iter().flatten().map(|event| event.start).min().unwrap_or_default();
    for event in events.iter_mut().flatten() {
        (event.start, event.end) = (event.start - first, event.end - first);
    }
}
