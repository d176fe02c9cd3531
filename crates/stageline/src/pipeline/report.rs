//! The reports of a training step and of an evaluation.

use std::time::Duration;

use crate::recording::Recording;
use crate::update::finite::Culprit;
use crate::update::health::ParameterHealth;

/// The report of one training step: loss, update of the parameters, and recorded times.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepReport {
    /// The index of the step, from 0. A skipped step counts here and for [`Dropout`](crate::Dropout), and not as a step
    /// of the optimizers or learning rates.
    pub step: usize,
    /// The loss: the sum of its terms, each divided by its weight. NaN if the batch has no unmasked target.
    pub loss: f64,
    /// The terms of the loss; most losses have one. Empty if the batch has no unmasked target.
    pub terms: Vec<LossTerm>,
    /// The loss scale: the factor by which the loss was multiplied before the backward.
    pub loss_scale: f64,
    /// The time from splitting the batch until the last worker has finished the step. With
    /// [overlapping steps](crate::Pipeline::steps), the time since the end of the previous step if that is shorter.
    pub step_time: Duration,
    /// The part of each stage in the step, in order, over all replicas.
    pub stages: Vec<StageReport>,
    /// M, the number of micro-batches of each replica.
    pub micro_batches: usize,
    /// R, the number of replicas.
    pub replicas: usize,
    /// The number of reductions of gradient sums over the replicas: one for each stage, or 0 if there is one replica.
    pub reductions: usize,
    /// The recording of every worker's actions and their times.
    pub recording: Recording,
    /// The outcome for the parameters: updated, or skipped and why.
    pub update: Update,
    /// The health of every parameter that has a gradient, in layer order; empty unless
    /// [`health_every`](crate::PipelineBuilder::health_every) selects this step.
    pub health: Vec<ParameterHealth>,
}

/// One term of a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossTerm {
    /// The sum over the term's targets divided by their weight; 0 if the sum and the weight are 0.
    pub loss: f64,
    /// The total weight of the term's targets.
    pub weight: f64,
}

/// Returns the weight of the first term; 0 if there is none.
fn weight(terms: &[LossTerm]) -> f64 {
    terms.first().map_or(0.0, |term| term.weight)
}

/// The effect of a step on the parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// Every stage stepped its optimizer.
    Stepped {
        /// The global norm: the Euclidean norm of all gradients of all stages together, before clipping.
        gradient_norm: f64,
        /// Whether the gradients were clipped. It is always true with [`Clip::Value`](crate::Clip::Value), even if the
        /// clipping changed no gradient.
        clipped: bool,
    },
    /// The batch has no unmasked target, so nothing was computed or changed.
    NoWeight,
    /// Gradients overflowed at this loss scale. No parameter changed, and the scale was lowered for the next step.
    Overflow {
        /// The loss scale of the step.
        loss_scale: f64,
        /// The first computation that overflowed; `None` if a second run of the step did not overflow.
        culprit: Option<Culprit>,
    },
    /// The loss or a gradient was NaN or infinite, so no parameter changed.
    NonFinite {
        /// The first computation with a non-finite result; `None` if a second run of the step was finite.
        culprit: Option<Culprit>,
    },
}

impl Update {
    /// Whether the optimizers of all stages stepped.
    pub fn stepped(&self) -> bool {
        matches!(self, Self::Stepped { .. })
    }
}

/// The part of one stage in one training step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StageReport {
    /// The total time of the stage's forwards, backwards and optimizer step, over all replicas.
    pub busy: Duration,
    /// The learning rate of the stage's optimizer step; `None` if the step was skipped.
    pub learning_rate: Option<f64>,
}

impl StepReport {
    /// Returns the total weight of the loss. If the loss has several terms, returns the weight of the first one.
    pub fn weight(&self) -> f64 {
        weight(&self.terms)
    }

    /// Returns the measured bubble: the share of the *total* stage time (workers x step time) in which workers are
    /// idle.
    pub fn bubble(&self) -> f64 {
        self.recording.bubble()
    }

    /// Returns the number of workers of all replicas together.
    pub fn workers(&self) -> usize {
        self.recording.events().len()
    }

    /// Returns the ideal bubble of GPipe and 1F1B on P workers with equal stages and free transfers, as a share of the
    /// total stage time: (P-1)/(M+P-1), or (P-1)/(VM+P-1) with V stages per worker (Narayanan et al., 2021,
    /// [arXiv:2104.04473](https://arxiv.org/abs/2104.04473)).
    pub fn ideal_bubble(&self) -> f64 {
        let workers = self.recording.plan().plan().workers();
        ideal_bubble(workers, self.micro_batches * self.stages.len() / workers.max(1))
    }
}

/// Returns (P-1)/(VM+P-1) for P workers, each with VM forwards.
fn ideal_bubble(workers: usize, chunk_forwards: usize) -> f64 {
    let fill = workers.saturating_sub(1) as f64;
    fill / (chunk_forwards as f64 + fill).max(1.0)
}

/// The report of one evaluation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EvalReport {
    /// The loss: the sum of its terms, each divided by its weight.
    pub loss: f64,
    /// The terms of the loss; most losses have one.
    pub terms: Vec<LossTerm>,
}

impl EvalReport {
    /// Returns the total weight of the loss. If the loss has several terms, returns the weight of the first one.
    pub fn weight(&self) -> f64 {
        weight(&self.terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ideal_bubble_follows_the_formula_of_narayanan() {
        assert_eq!(ideal_bubble(2, 4), 1.0 / 5.0);
        assert_eq!(ideal_bubble(1, 1), 0.0);
        assert_eq!(ideal_bubble(2, 8), 1.0 / 9.0);
    }
}
