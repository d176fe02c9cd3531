//! The reports that the caller gets: [`StepReport`] of a training step, and [`EvalReport`] of an evaluation.

use std::sync::Arc;
use std::time::Duration;

use stageline_schedule::{Costs, simulate};

use crate::recording::Recording;
use crate::update::health::ParameterHealth;
use crate::update::noise::NoiseReport;
use crate::update::not_finite::Culprit;

/// The report of one training step, as [`Pipeline::step`](crate::Pipeline::step) returns it: its loss and metrics,
/// whether the parameters were updated, gradient norms, and recorded times.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepReport {
    /// Zero-based number of the training step. Skipped steps are counted here and by [`Dropout`](crate::Dropout), but
    /// not by optimizers and learning rate schedules.
    pub step: usize,
    /// The mean loss of the batch: each loss term is divided by its weight (usually the number of unmasked targets),
    /// and the quotients are added. NaN if the batch has no unmasked target.
    pub loss: f64,
    /// The terms of the batch's loss, each with its mean and weight; most losses have one term. The list is empty if
    /// the batch has no unmasked target.
    pub terms: Vec<LossTerm>,
    /// The metrics of the batch in addition to its loss, such as the accuracy, in the order of
    /// [`LossStage::METRICS`](crate::LossStage::METRICS). The list is empty if the last stage has no metrics or the
    /// batch has no unmasked target.
    pub metrics: Vec<Metric>,
    /// The loss scale: the factor that multiplied the loss before the backward pass. The losses and gradient norms in
    /// this report do not contain this factor.
    pub loss_scale: f64,
    /// The duration of the step, from splitting the batch until the last worker has finished the step. With
    /// [overlapping steps](crate::Pipeline::steps), it is the time since the end of the previous step if that time is
    /// shorter.
    pub step_time: Duration,
    /// Each stage's busy time (summed over all replicas) and learning rate in the step, in stage order.
    pub stages: Vec<StageReport>,
    /// M, the number of micro-batches that each data-parallel replica ran in the step.
    pub micro_batches: usize,
    /// R, the number of data-parallel replicas of the pipeline.
    pub replicas: usize,
    /// The number of gradient reductions: how often gradient sums were added up over the data-parallel replicas,
    /// usually once for each stage. It is 0 if there is one replica or the batch has no unmasked target.
    pub reductions: usize,
    /// The timeline of every worker's computations, transfers and waits in the step, with the allocated memory where it
    /// was measured.
    pub recording: Recording,
    /// Whether the training step updated the parameters or was skipped, and why.
    pub update: Update,
    /// The Euclidean norms of the gradients, one for each parameter that has a gradient, before clipping and after
    /// division by the loss scale, in layer order. Each norm comes with the parameter's name in checkpoints, such as
    /// `blocks.3.linear.weight`. The list is empty if the batch has no unmasked target.
    pub gradient_norms: Vec<(Arc<str>, f64)>,
    /// The health of every parameter that has a gradient, in layer order: training statistics such as its gradient
    /// norm, update norm and second moment. The list is empty unless
    /// [`health_every`](crate::PipelineBuilder::health_every) selects this step.
    pub health: Vec<ParameterHealth>,
    /// The squared norm of the gradient, and its noise (the sum of the variances of its elements), before clipping and
    /// after division by the loss scale. Both are estimated from the micro-batches of all replicas, each weighted by
    /// its loss weight (of the first term, if the loss has several). `None` unless
    /// [`noise_every`](crate::PipelineBuilder::noise_every) selects this step, at least two micro-batches have a loss
    /// weight, and all gradients are finite.
    pub noise: Option<NoiseReport>,
}

/// One term of a loss, with its mean and its weight; most losses have one term.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossTerm {
    /// The mean of this term of the loss: its sum over the targets, divided by their total weight. If the loss has
    /// several terms, a term of weight 0 has the mean 0. A single term of weight 0 has the mean 0 only if its sum is
    /// also 0.
    pub loss: f64,
    /// The total loss weight of this term in the batch, by which its sum was divided; usually the number of unmasked
    /// targets.
    pub weight: f64,
}

/// A metric of a batch in addition to its loss, such as the accuracy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// The name of the metric, such as `accuracy`, from the list [`LossStage::METRICS`](crate::LossStage::METRICS).
    pub name: &'static str,
    /// The sum of the metric over the targets of the batch, divided by the batch's loss weight (usually its number of
    /// unmasked targets). If the loss has several terms, the divisor is the weight of the first term.
    pub value: f64,
}

/// Returns the mean of every loss term over several batches, weighted by the term's loss weight in each batch.
pub(crate) fn means_over<'a>(batches: impl IntoIterator<Item = &'a [LossTerm]> + Clone) -> Vec<LossTerm> {
    let terms = batches.clone().into_iter().map(<[_]>::len).max().unwrap_or(0);
    (0..terms).map(|at| mean_of(batches.clone().into_iter().filter_map(|terms| terms.get(at).copied()))).collect()
}

/// Returns the weighted mean of a loss term over several batches, and the sum of the weights. The mean is 0 if no batch
/// has a weight.
fn mean_of(batches: impl Iterator<Item = LossTerm>) -> LossTerm {
    let add = |(sum, total): (f64, f64), term: LossTerm| (sum + term.loss * term.weight, total + term.weight);
    let (sum, weight) = batches.filter(|term| term.weight > 0.0).fold((0.0, 0.0), add);
    LossTerm { loss: if weight > 0.0 { sum / weight } else { 0.0 }, weight }
}

fn weight(terms: &[LossTerm]) -> f64 {
    terms.first().map_or(0.0, |term| term.weight)
}

/// The effect of a training step on the parameters: updated, or skipped for a reason (no unmasked target, overflow, or
/// a result that is not finite).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// Every stage stepped its optimizer, so the step updated the parameters.
    Stepped {
        /// The global gradient norm of the step: the Euclidean norm of all gradients of all stages together, before
        /// clipping and after division by the loss scale.
        gradient_norm: f64,
        /// Whether the gradients were clipped. The flag is always true with [`Clip::Value`](crate::Clip::Value), even
        /// if the clipping changed no gradient.
        clipped: bool,
    },
    /// The batch has no unmasked target, so the step computed and changed nothing.
    NoWeight,
    /// Gradients overflowed at the step's loss scale. No parameter changed, and the loss scale was lowered for the next
    /// step.
    Overflow {
        /// The loss scale of this step, whose gradients overflowed.
        loss_scale: f64,
        /// The step's first computation whose result overflowed, found by a second run of the step; `None` if the
        /// second run did not overflow.
        culprit: Option<Culprit>,
    },
    /// The step's loss or a gradient was NaN or infinite, and lowering the loss scale could not help. No parameter
    /// changed, and the loss scale stays as it is.
    NonFinite {
        /// The step's first computation with a non-finite result, found by a second run of the step; `None` if all
        /// results of the second run were finite.
        culprit: Option<Culprit>,
    },
}

impl Update {
    /// Whether the optimizers of all stages stepped, so that the step updated the parameters.
    pub fn stepped(&self) -> bool {
        matches!(self, Self::Stepped { .. })
    }
}

/// One stage's part of a [`StepReport`]: the stage's busy time and learning rate in one training step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StageReport {
    /// The stage's compute time in the step, summed over all replicas: forward passes, backward passes, gradient norms
    /// and optimizer step, without waits.
    pub busy: Duration,
    /// The learning rate of the stage's optimizer step; `None` if the step was skipped.
    pub learning_rate: Option<f64>,
}

impl StepReport {
    /// Returns the total loss weight of the step's batch, usually its number of unmasked targets. If the loss has
    /// several terms, returns the weight of the first term.
    pub fn weight(&self) -> f64 {
        weight(&self.terms)
    }

    /// Returns the measured bubble: the workers' idle time as a fraction, from 0 to 1, of the *total* stage time
    /// (workers x step time).
    pub fn bubble(&self) -> f64 {
        self.recording.bubble()
    }

    /// Returns the number of worker threads of the pipeline, over all replicas.
    pub fn workers(&self) -> usize {
        self.recording.events().len()
    }

    /// Returns the ideal bubble of the plan (the order of forward and backward passes on each worker). It is the idle
    /// fraction, from 0 to 1, of the total stage time (workers x step time) in a simulated step. In the simulation all
    /// stages take equal time. A backward pass takes twice the time of a forward pass, and its two halves take equal
    /// time. Transfers and optimizer steps take no time.
    ///
    /// On P workers with M micro-batches, GPipe and 1F1B have (P-1)/(M+P-1), and interleaved 1F1B with V stages on each
    /// worker has (P-1)/(VM+P-1) (Narayanan et al., 2021, [arXiv:2104.04473](https://arxiv.org/abs/2104.04473)).
    pub fn ideal_bubble(&self) -> f64 {
        let plan = self.recording.plan();
        simulate(plan, &Costs::uniform(plan.plan().stages(), 1.0, 2.0)).bubble()
    }
}

/// The report of an evaluation, as [`Pipeline::eval`](crate::Pipeline::eval) returns it: the loss and the metrics of
/// one batch, without training.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EvalReport {
    /// The mean loss of the evaluated batch: each loss term is divided by its weight (usually the number of unmasked
    /// targets), and the quotients are added.
    pub loss: f64,
    /// The terms of the evaluated batch's loss, each with its mean and weight; most losses have one term. Their means
    /// add up to `loss`.
    pub terms: Vec<LossTerm>,
    /// The metrics of the evaluated batch in addition to its loss, such as the accuracy, in the order of
    /// [`LossStage::METRICS`](crate::LossStage::METRICS).
    pub metrics: Vec<Metric>,
}

impl EvalReport {
    /// Returns the total loss weight of the evaluated batch, usually its number of unmasked targets. If the loss has
    /// several terms, returns the weight of the first term.
    pub fn weight(&self) -> f64 {
        weight(&self.terms)
    }

    /// Returns one report for several evaluated batches of one pipeline. Each loss term and each metric is averaged
    /// over the batches, weighted by their loss weights. Returns `None` if there is no batch.
    pub fn over(batches: &[Self]) -> Option<Self> {
        let first = batches.first()?;
        let terms = means_over(batches.iter().map(|batch| &batch.terms[..]));
        let metric = |(at, metric): (usize, &Metric)| {
            let of_batch = |batch: &Self| LossTerm { loss: batch.metrics[at].value, weight: batch.weight() };
            Metric { value: mean_of(batches.iter().map(of_batch)).loss, ..*metric }
        };
        let metrics = first.metrics.iter().enumerate().map(metric).collect();
        Some(Self { loss: terms.iter().map(|term| term.loss).sum(), terms, metrics })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_averaged_by_their_weights() {
        let batch = |losses: [(f64, f64); 2], accuracy| {
            let terms: Vec<_> = losses.iter().map(|&(loss, weight)| LossTerm { loss, weight }).collect();
            let metrics = vec![Metric { name: "accuracy", value: accuracy }];
            EvalReport { loss: terms.iter().map(|term| term.loss).sum(), terms, metrics }
        };
        // The second batch has no weight in the second term, so its mean of that term does not count.
        let all =
            EvalReport::over(&[batch([(1.0, 3.0), (5.0, 2.0)], 0.5), batch([(2.0, 1.0), (0.0, 0.0)], 0.9)]).unwrap();
        assert_eq!((all.loss, all.weight(), all.metrics[0].value), (1.25 + 5.0, 4.0, 0.6));
        assert_eq!(EvalReport::over(&[]), None);
    }
}
