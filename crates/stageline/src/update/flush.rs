//! The flush: the phase at the end of a training step that computes gradient norms and steps the optimizers. Every
//! stage reports its gradient norms, losses and ledger (the count of micro-batches in its gradient sum). One verdict
//! for all stages then says whether they step their optimizers or skip the step.
//!
//! A flush does the following, in this order: sums the gradients, divides them by the loss scale, looks for non-finite
//! results, computes the global norm, clips, and steps the optimizers. The optimizer step itself is in
//! `optimizer_step`.

use burn::module::ParamId;

use crate::model::replica::{Replica, ReplicaStage};
use crate::update::clip::{Clip, Scaling};
use crate::update::ledger::{Ledger, LedgerError, agree};
use crate::update::noise::{GradientNoise, NoiseReport};
use crate::update::not_finite::{Culprit, OnNonFinite};

/// Settings of the flush (the end-of-step phase that computes gradient norms and steps the optimizers): gradient
/// clipping, what to do when a result is not finite (stop or skip), and how often to report statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushConfig {
    pub(crate) clip: Option<Clip>,
    pub(crate) on_non_finite: OnNonFinite,
    /// Interval, in steps, between reports on parameter health (per-parameter statistics such as gradient norms). 0
    /// turns them off.
    pub(crate) health_every: usize,
    /// Interval, in steps, between estimates of the gradient noise. 0 turns them off.
    pub(crate) noise_every: usize,
}

impl FlushConfig {
    /// Returns the verdict that stages assume for step `step` when they step their optimizers speculatively, before all
    /// stages have reported: [`Verdict::Step`], with finite losses and gradients and a global norm within the clipping
    /// bound.
    pub(crate) fn assumed(self, step: usize) -> Verdict {
        let scaling = self.clip.map_or(Scaling::Keep, |clip| clip.scaling(0.0));
        Verdict::Step { scaling, examine: self.examines(step) }
    }

    /// Whether step `step` reports parameter health (statistics such as gradient norms). True for multiples of
    /// `health_every`, unless that is 0.
    pub(crate) fn examines(self, step: usize) -> bool {
        is_every(self.health_every, step)
    }

    /// Whether step `step` estimates the gradient noise. True for multiples of `noise_every`, unless that is 0.
    pub(crate) fn measures_noise(self, step: usize) -> bool {
        is_every(self.noise_every, step)
    }
}

/// Whether `step` is a multiple of the interval `steps`. Always false if `steps` is 0.
fn is_every(steps: usize, step: usize) -> bool {
    steps > 0 && step.is_multiple_of(steps)
}

/// The time at which a stage steps its optimizer: after the verdict for all stages (step, or skip the step) is known,
/// or speculatively before that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flush {
    /// Wait for the verdict for all stages (step, or skip the step) before the optimizer step. The verdict depends on
    /// all stages' gradients.
    Together,
    /// Step the optimizer as soon as the stage's own gradient sums are complete and finite, without waiting for other
    /// stages. The value is the assumed verdict. If the actual verdict for all stages differs, the optimizer step is
    /// rolled back and the flush is repeated with the actual verdict. This is the post-validation of zero-bubble
    /// schedules (Qi et al., 2023).
    Ahead(Verdict),
}

/// The decision, the same for all stages, on how a step ends: step the optimizers, return the gradients to the caller,
/// rehearse (measure memory, then roll back), or skip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Every stage steps its optimizer and keeps the new parameters.
    Step {
        /// The clipping of all gradients before the optimizer step: none, by a factor, or by a clamp.
        scaling: Scaling,
        /// Whether the stages report the health of each parameter in this step, such as its gradient norm.
        examine: bool,
    },
    /// Every stage returns its gradients to the caller, before and after clipping by `scaling`. Parameters and
    /// optimizers do not change.
    Show { scaling: Scaling },
    /// Every stage steps its optimizer and then rolls the step back. Used in a rehearsal, a dry-run step that only
    /// measures memory. Stages do not exchange the values of tied parameters.
    Rehearse { examine: bool },
    /// Every stage discards its gradients. Parameters and optimizers do not change.
    Skip,
}

impl Verdict {
    /// Whether a step with this verdict counts as an optimizer step: all stages step their optimizers and keep the new
    /// parameters.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Self::Step { .. })
    }
}

/// One stage's report at the end of a step or evaluation: losses, metrics, gradient norms, non-finite results, and the
/// number of micro-batches in its gradient sum.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    /// Squared norm of each parameter's summed gradient, in layer order; parameters without a gradient are left out.
    /// Only replica 0 fills the list, because it has the sums over all replicas.
    pub(crate) squared_norms: Vec<(ParamId, f64)>,
    /// Sum of the squared norms of the micro-batches' gradients, over all parameters of the stage. Used to estimate the
    /// gradient noise; `None` in steps that do not.
    pub(crate) squared_norm_of_each: Option<f64>,
    /// Number of gradient reductions (sums over all data-parallel replicas) by this stage. It is 1 in a training step
    /// if the stage belongs to replica 0 of several replicas, and otherwise 0.
    pub(crate) reductions: usize,
    /// The computations of this stage whose results were NaN or infinite. Filled only when a step with a non-finite
    /// loss or gradient is run again to find their origin.
    pub(crate) culprits: Vec<Culprit>,
    /// The number of micro-batches in the stage's gradient sum, and the sum of their loss weights.
    pub(crate) ledger: Ledger,
    /// The loss of every micro-batch, in micro-batch order. Each entry has one value for each loss term, summed over
    /// the micro-batch's targets. Empty except on the last stage.
    pub(crate) losses: Vec<Vec<f64>>,
    /// The metrics of every micro-batch, each summed over the micro-batch's targets. Empty except on a last stage that
    /// has metrics.
    pub(crate) metrics: Vec<Vec<f64>>,
}

impl Outcome {
    fn place(&self) -> ReplicaStage {
        ReplicaStage { replica: self.replica, stage: self.stage }
    }

    /// Whether all losses and gradient norms in this stage's report are finite.
    pub(crate) fn is_finite(&self) -> bool {
        let losses = self.losses.iter().flatten();
        self.squared_norms.iter().map(|(_, square)| square).chain(losses).all(|number| number.is_finite())
    }
}

/// The totals of a step over all stages, such as its losses and its gradient norm.
pub(crate) struct Sums {
    /// Sum of each loss term over the step's micro-batches, not yet divided by the loss weight.
    pub(crate) losses: Vec<f64>,
    /// Sum of each metric over the step's micro-batches, not yet divided by the loss weight.
    pub(crate) metrics: Vec<f64>,
    /// The global norm before clipping: the Euclidean norm of all gradients of all stages together.
    pub(crate) gradient_norm: f64,
    /// The Euclidean norm of each parameter's gradient before clipping, in layer order.
    pub(crate) gradient_norms: Vec<(ParamId, f64)>,
    /// Number of gradient reductions (sums over all data-parallel replicas) in the step: one for each stage, or 0 with
    /// one replica.
    pub(crate) reductions: usize,
    /// The estimates of the gradient's squared norm and noise. `None` if the step does not measure them.
    pub(crate) noise: Option<NoiseReport>,
}

impl Sums {
    /// Computes a step's totals (losses, metrics, gradient norm) from the reports of all stages. First checks that
    /// every stage has summed the gradients of all its micro-batches. `expected` contains, for each replica, the number
    /// of its micro-batches and the sum of their loss weights. `weights` lists all micro-batches' loss weights in the
    /// first term of the loss.
    ///
    /// # Errors
    /// Returns [`LedgerError`] if a stage's gradient sum does not contain exactly its replica's part of the batch.
    pub(crate) fn of(outcomes: &[Outcome], expected: &[Ledger], weights: &[f64]) -> Result<Self, LedgerError> {
        agree(outcomes.iter().map(|outcome| (outcome.place(), outcome.ledger.clone())), expected)?;
        let squares = || outcomes.iter().flat_map(|outcome| &outcome.squared_norms);
        let gradient_norm = squares().map(|(_, square)| square).sum::<f64>().sqrt();
        let gradient_norms = squares().map(|(id, square)| (*id, square.sqrt())).collect();
        let reductions = outcomes.iter().map(|outcome| outcome.reductions).sum();
        let noise = noise(outcomes, weights);
        let (losses, metrics) = (losses(outcomes), metrics(outcomes));
        Ok(Self { losses, metrics, gradient_norm, gradient_norms, reductions, noise })
    }

    /// Returns the verdict for all stages: step their optimizers, or skip the step because the loss or a gradient is
    /// not finite.
    pub(crate) fn verdict(&self, config: FlushConfig, step: usize) -> Verdict {
        let step = |scaling| Verdict::Step { scaling, examine: config.examines(step) };
        self.scaling(config).map_or(Verdict::Skip, step)
    }

    /// Returns the clipping of the step's gradients; `None` if the loss or a gradient is not finite.
    pub(crate) fn scaling(&self, config: FlushConfig) -> Option<Scaling> {
        let finite = self.losses.iter().all(|loss| loss.is_finite()) && self.gradient_norm.is_finite();
        finite.then(|| config.clip.map_or(Scaling::Keep, |clip| clip.scaling(self.gradient_norm)))
    }
}

/// Returns each term of a step's loss from the reports of all stages (`outcomes`), summed over the micro-batches in the
/// order of the batch.
pub(crate) fn losses(outcomes: &[Outcome]) -> Vec<f64> {
    summed(outcomes.iter().flat_map(|outcome| outcome.losses.iter().cloned()))
}

/// Returns each metric of a step or an evaluation from the reports of all stages (`outcomes`), summed over the
/// micro-batches in the order of the batch.
pub(crate) fn metrics(outcomes: &[Outcome]) -> Vec<f64> {
    summed(outcomes.iter().flat_map(|outcome| outcome.metrics.iter().cloned()))
}

/// Estimates a step's gradient noise from the reports of all stages of all replicas. `weights` lists all micro-batches'
/// loss weights in the first term of the loss. Returns `None` if the step did not measure the micro-batches' gradients,
/// if fewer than two micro-batches have a weight above 0, or if a gradient is not finite.
fn noise(outcomes: &[Outcome], weights: &[f64]) -> Option<NoiseReport> {
    let stages = outcomes.iter().filter(|outcome| outcome.replica.is_first()).count();
    let mut sums = vec![(0.0, 0.0); stages];
    for outcome in outcomes {
        let (of_sum, of_each) = &mut sums[outcome.stage];
        *of_sum += outcome.squared_norms.iter().map(|(_, square)| square).sum::<f64>();
        *of_each += outcome.squared_norm_of_each?;
    }
    let estimate = |(of_sum, of_each): (f64, f64)| {
        GradientNoise::of_micro_batches(weights, of_sum, of_each)
            .filter(|noise| noise.squared_norm.is_finite() && noise.variance.is_finite())
    };
    let total = sums.iter().fold((0.0, 0.0), |total, stage| (total.0 + stage.0, total.1 + stage.1));
    Some(NoiseReport { total: estimate(total)?, stages: sums.into_iter().map(estimate).collect::<Option<_>>()? })
}

/// Returns the element-wise sum of the lists in `each`, which have equal lengths. If `each` is empty, the sum is empty.
fn summed(each: impl Iterator<Item = Vec<f64>>) -> Vec<f64> {
    each.reduce(|sums, next| sums.into_iter().zip(next).map(|(sum, next)| sum + next).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(stage: usize, backwards: usize, weight: f64) -> Outcome {
        Outcome {
            replica: Replica::default(),
            stage,
            squared_norms: vec![(ParamId::new(), 9.0), (ParamId::new(), 16.0)],
            squared_norm_of_each: None,
            reductions: 0,
            culprits: Vec::new(),
            ledger: Ledger { backwards, weight: weight.into() },
            losses: Vec::new(),
            metrics: Vec::new(),
        }
    }

    /// Tests that a step ends with an error if a stage's gradient sum has a wrong number of micro-batches or a wrong
    /// loss weight. Without the error, the other stages would step their optimizers.
    #[test]
    fn sums_that_are_not_the_whole_step_give_an_error_and_no_verdict() {
        let expected = [Ledger { backwards: 4, weight: 10.0.into() }];
        let whole = Sums::of(&[outcome(0, 4, 10.0), outcome(1, 4, 10.0)], &expected, &[2.5; 4]).unwrap();
        assert_eq!(whole.gradient_norm, 50.0_f64.sqrt());
        for (backwards, weight) in [(3, 10.0), (5, 10.0), (4, 9.0), (0, 0.0)] {
            for at in 0..2 {
                let mut outcomes = [outcome(0, 4, 10.0), outcome(1, 4, 10.0)];
                outcomes[at] = outcome(at, backwards, weight);
                let error = Sums::of(&outcomes, &expected, &[2.5; 4]).map(drop).unwrap_err();
                assert_eq!((error.stage, error.found.backwards), (at, backwards));
            }
        }
    }
}
