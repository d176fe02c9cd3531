//! What a step and an evaluation tell.

use std::time::Duration;

use crate::recording::Recording;
use crate::update::finite::Culprit;
use crate::update::health::ParameterHealth;

/// What one training step did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepReport {
    /// The step, from 0.
    pub step: usize,
    /// The loss: its terms, each per unit of its weight, added up; NaN where no target counts.
    pub loss: f64,
    /// Its terms, of which most losses have one; none where no target counts.
    pub terms: Vec<LossTerm>,
    /// What it was multiplied by before the backward.
    pub loss_scale: f64,
    /// From the cut batch to the last optimizer step; of [steps that overlap](crate::Pipeline::steps) since the end of the step before.
    pub step_time: Duration,
    /// Each stage's part, in order, in all replicas.
    pub stages: Vec<StageReport>,
    /// The number of micro-batches of each replica, M.
    pub micro_batches: usize,
    /// The number of replicas, R.
    pub replicas: usize,
    /// How often the sums of a stage's gradients were added up over the replicas: once a stage; never where there is one replica.
    pub reductions: usize,
    /// What every worker did, and when.
    pub recording: Recording,
    /// What became of the gradients.
    pub update: Update,
    /// Every parameter that has a gradient, in layer order, in the steps in which
    /// [`health_every`](crate::PipelineBuilder::health_every) asks for it; else none.
    pub health: Vec<ParameterHealth>,
}

/// One term of a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossTerm {
    /// Per unit of weight: the sum over all its targets, divided by their weight; 0 where that is 0.
    pub loss: f64,
    /// The total weight of its targets.
    pub weight: f64,
}

/// The weight of the first term.
fn weight(terms: &[LossTerm]) -> f64 {
    terms.first().map_or(0.0, |term| term.weight)
}

/// What a step did to the parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// Every stage stepped its optimizer.
    Stepped {
        /// The norm of all gradients of all stages together, before they were clipped.
        gradient_norm: f64,
        /// Whether they were clipped; with [`Clip::Value`](crate::Clip::Value) every step is, though it may change nothing.
        clipped: bool,
    },
    /// No target of the batch counts, so nothing was computed and nothing changed.
    NoWeight,
    /// Gradients overflow at this scale of the loss, so nothing changed, and the scale falls.
    Overflow {
        /// The scale.
        loss_scale: f64,
        /// Where it overflows first; `None` if a second run of the step did not show it again.
        culprit: Option<Culprit>,
    },
    /// The loss or a gradient is NaN or infinite, so nothing changed.
    NonFinite {
        /// Where it came from; `None` if a second run of the step did not show it again.
        culprit: Option<Culprit>,
    },
}

impl Update {
    /// Whether the optimizers stepped.
    pub fn stepped(&self) -> bool {
        matches!(self, Self::Stepped { .. })
    }
}

/// What one stage did in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StageReport {
    /// The time in forwards, backwards and the optimizer step, in all replicas together.
    pub busy: Duration,
    /// The learning rate of its optimizer step; `None` where the step was skipped.
    pub learning_rate: Option<f64>,
}

impl StepReport {
    /// The total weight of the loss; of its first term, where it has several.
    pub fn weight(&self) -> f64 {
        weight(&self.terms)
    }

    /// The bubble: the share of the *total* stage time (workers x step time) in which no stage computes.
    pub fn bubble(&self) -> f64 {
        self.recording.bubble()
    }

    /// The number of workers, of all replicas together.
    pub fn workers(&self) -> usize {
        self.recording.events().len()
    }

    /// The ideal bubble of GPipe and 1F1B on P workers with equal stages and free transfers, as a share of the total:
    /// (P-1)/(M+P-1), or (P-1)/(VM+P-1) with V stages a worker (Narayanan et al., 2021, [arXiv:2104.04473](https://arxiv.org/abs/2104.04473)).
    pub fn ideal_bubble(&self) -> f64 {
        let workers = self.recording.plan().plan().workers();
        ideal_bubble(workers, self.micro_batches * self.stages.len() / workers.max(1))
    }
}

/// (P-1)/(VM+P-1), the share of the total stage time.
fn ideal_bubble(workers: usize, chunk_forwards: usize) -> f64 {
    let fill = workers.saturating_sub(1) as f64;
    fill / (chunk_forwards as f64 + fill).max(1.0)
}

/// What one evaluation found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EvalReport {
    /// The loss: its terms, each per unit of its weight, added up.
    pub loss: f64,
    /// Its terms.
    pub terms: Vec<LossTerm>,
}

impl EvalReport {
    /// The total weight of the loss; of its first term, where it has several.
    pub fn weight(&self) -> f64 {
        weight(&self.terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_bubble_is_that_of_narayanan() {
        assert_eq!(ideal_bubble(2, 4), 1.0 / 5.0);
        assert_eq!(ideal_bubble(1, 1), 0.0);
        assert_eq!(ideal_bubble(2, 8), 1.0 / 9.0);
    }
}
