//! A step.

use std::time::Duration;

use stageline_schedule::Plan;

use super::Pipeline;
use super::pass::{Ended, terms, total_loss};
use crate::batch::MicroBatches;
use crate::batch_size::BatchChange;
use crate::clip::Scaling;
use crate::error::StepError;
use crate::events::{Event, busy};
use crate::finite::{Culprit, OnNonFinite, Origin};
use crate::flush::Verdict;
use crate::health::ParameterHealth;
use crate::payload::Payload;
use crate::report::{LossTerm, StageReport, Update};
use crate::worker::Stepped;

/// A step that is over.
pub(super) struct Concluded {
    /// None where nothing was computed.
    pub(super) terms: Vec<LossTerm>,
    pub(super) stages: Vec<StageReport>,
    pub(super) health: Vec<ParameterHealth>,
    pub(super) update: Update,
    /// Of each worker.
    pub(super) events: Vec<Vec<Event>>,
    /// Up to the last worker's end, without a second run.
    pub(super) took: Duration,
}

impl Concluded {
    /// Nothing was computed.
    pub(super) fn without_weight(plan: &Plan, took: Duration) -> Self {
        let stages = vec![StageReport::default(); plan.stages()];
        let events = vec![Vec::new(); plan.workers()];
        Self { terms: Vec::new(), stages, health: Vec::new(), update: Update::NoWeight, events, took }
    }

    pub(super) fn loss(&self) -> f64 {
        if self.terms.is_empty() { f64::NAN } else { total_loss(&self.terms) }
    }
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    pub(super) fn train(&mut self, batch: MicroBatches<In, Target>) -> Result<Concluded, Ended> {
        self.warn_of_change(batch.weights.all_samples());
        let total = batch.weights.total.clone();
        let context = self.context(batch.weights, total);
        let again = (batch.inputs.clone(), batch.targets.clone());
        let sums = self.sums(batch.inputs, batch.targets, &context)?;
        let scaling = sums.scaling(self.stepping.flush);
        let examine = self.stepping.flush.examines(self.steps);
        let verdict = scaling.map_or(Verdict::Skip, |scaling| Verdict::Step { scaling, examine });
        let concluded = self.conclude(verdict)?;
        let events = self.recorded()?;
        let took = self.began.elapsed();
        let update = match scaling {
            Some(scaling) => {
                self.stepping.scaler.stepped();
                Update::Stepped { gradient_norm: sums.gradient_norm, clipped: scaling != Scaling::Keep }
            }
            None => {
                let culprit = self.inspect(again, &context)?;
                self.not_finite(culprit, context.loss_scale)?
            }
        };
        let report = |stage: &Stepped| StageReport {
            busy: busy(events.iter().flatten().filter(|event| event.stage == stage.stage)),
            learning_rate: stage.conclusion.learning_rate,
        };
        Ok(Concluded {
            terms: terms(&sums.losses, &context.weights.total),
            stages: concluded.iter().map(report).collect(),
            health: concluded.into_iter().flat_map(|stage| stage.conclusion.health).collect(),
            update,
            events,
            took,
        })
    }

    /// Once.
    fn warn_of_change(&mut self, samples: usize) {
        if let Some(change) = self.stepping.tuned_for.and_then(|tuned_for| BatchChange::between(tuned_for, samples)) {
            self.stepping.tuned_for = None;
            tracing::warn!("{change}");
        }
    }

    /// What is made of a step that is not finite.
    fn not_finite(&mut self, culprit: Option<Culprit>, loss_scale: f64) -> Result<Update, Ended> {
        let step = self.steps;
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
    pub(super) fn back_off(&mut self, culprit: Option<Culprit>) -> bool {
        culprit.is_none_or(|culprit| culprit.origin == Origin::Backward) && self.stepping.scaler.back_off()
    }
}
