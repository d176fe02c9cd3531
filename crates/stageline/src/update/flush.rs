//! The flush at the end of a step. Every stage reports its gradient norms, losses and ledger (the count of
//! micro-batches in its gradient sum). One common verdict says whether all stages step their optimizers or skip the
//! step.
//!
//! The order of a flush is: sum, unscale, find non-finite results, global norm, clip, step. The step itself is in
//! `optimizer_step`.

use burn::module::ParamId;

use crate::model::replica::Replica;
use crate::update::clip::{Clip, Scaling};
use crate::update::finite::{Culprit, OnNonFinite};
use crate::update::ledger::{Ledger, LedgerError, agree};
use crate::update::noise::{GradientNoise, NoiseReport};

/// The settings of the flush (the end of a step, at which gradients are summed and optimizers step): gradient clipping,
/// the reaction to non-finite results, and the intervals of health reports and of measurements of the gradient noise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushConfig {
    pub(crate) clip: Option<Clip>,
    pub(crate) on_non_finite: OnNonFinite,
    /// The number of steps from one health report on the parameters (gradient norms, update sizes) to the next; 0 if
    /// there are no such reports.
    pub(crate) health_every: usize,
    /// The number of steps from one measurement of the gradient noise (the sum of the variances of the gradient's
    /// elements for a batch of loss weight 1) to the next; 0 if the noise is never measured.
    pub(crate) noise_every: usize,
}

impl FlushConfig {
    /// Returns the verdict that stages assume in the training step `step` before they know the common verdict: to step
    /// their optimizers. Stages assume that all losses and gradients are finite. They also assume that the global norm
    /// of the gradients needs no clipping.
    pub(crate) fn assumed(self, step: usize) -> Verdict {
        let scaling = self.clip.map_or(Scaling::Keep, |clip| clip.scaling(0.0));
        Verdict::Step { scaling, examine: self.examines(step) }
    }

    /// Whether the health of the parameters (such as gradient norms and update sizes) is reported in the step `step`:
    /// in step 0 and every `health_every` steps after it, or never if `health_every` is 0.
    pub(crate) fn examines(self, step: usize) -> bool {
        is_every(self.health_every, step)
    }

    /// Whether the gradient noise (the sum of the variances of the gradient's elements for a batch of loss weight 1) is
    /// measured in the step `step`: in step 0 and every `noise_every` steps after it, or never if `noise_every` is 0.
    pub(crate) fn measures_noise(self, step: usize) -> bool {
        is_every(self.noise_every, step)
    }
}

/// Whether an action that is due in every `steps`-th training step is due in the step `step`: in step 0 and every
/// `steps` steps after it, or never if `steps` is 0.
fn is_every(steps: usize, step: usize) -> bool {
    steps > 0 && step.is_multiple_of(steps)
}

/// The moment at which stages step their optimizers in a training step: after the common verdict of all stages (step,
/// or skip the step), or speculatively before that verdict is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flush {
    /// Before it steps its optimizer, every stage waits for the verdict on the step (step, or skip it), which depends
    /// on the gradient sums of all stages.
    Together,
    /// Each stage steps its optimizer as soon as its own gradient sums are complete and finite. The value is the
    /// verdict that the stage assumes: to step, and how gradients are clipped. If the true verdict of all stages
    /// differs, the step is rolled back and ended again as the true verdict says (the post-validation of Qi et al.,
    /// 2023).
    Ahead(Verdict),
}

/// The verdict on a step, decided once for all stages: what every stage does with its gradients at the end of the step,
/// such as step its optimizer, only return the gradients, or discard them (skip the step).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Every stage steps its optimizer with the gradients of the training step, and the new parameters are kept.
    Step {
        /// The clipping of the gradients of all stages before the optimizer step: none, by a factor, or by a clamp.
        scaling: Scaling,
        /// Whether the stages report the health of each parameter (such as its gradient norm and update size) in this
        /// step.
        examine: bool,
    },
    /// Every stage returns its gradients to the caller, before and after clipping, and changes neither its parameters
    /// nor its optimizer.
    Show { scaling: Scaling },
    /// The step is a rehearsal, which only measures the memory that training needs: every stage steps its optimizer and
    /// then rolls the step back. No values of tied parameters are exchanged.
    Rehearse { examine: bool },
    /// The verdict to skip the step: every stage discards the step's gradients, and changes neither its parameters nor
    /// its optimizer.
    Skip,
}

impl Verdict {
    /// Whether this verdict on a step makes the stages step their optimizers and keep that step; false if they skip it,
    /// roll it back or only return gradients.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Self::Step { .. })
    }
}

/// The report of one stage at the end of a pass over a batch (a step, an evaluation, ...): gradient norms, losses,
/// non-finite results, and the ledger, which counts the micro-batches in the stage's gradient sum.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    /// The squared norm of the gradient sum of each of the stage's parameters that has a gradient, in layer order. The
    /// list is empty in replicas other than replica 0, because replica 0 has the gradient sums over all replicas.
    pub(crate) squared_norms: Vec<(ParamId, f64)>,
    /// The sum of the squared norms of the micro-batches' gradients, over all micro-batches and all parameters of the
    /// stage; `None` unless the step measures the gradient noise (the sum of the variances of the gradient's elements
    /// for a batch of loss weight 1).
    pub(crate) squared_norm_of_each: Option<f64>,
    /// The number of times that this stage added up the gradients of all data-parallel replicas in the pass over the
    /// batch: 1 in a training pass in the first of several replicas, else 0.
    pub(crate) reductions: usize,
    /// The computations of this stage that gave NaN or infinity. Stages look for them only when a step with a
    /// non-finite loss or gradient is run a second time; in all other passes the list is empty.
    pub(crate) culprits: Vec<Culprit>,
    /// The ledger of the stage's gradient sum: the number of micro-batches in it, and the sum of their loss weights
    /// (usually their numbers of unmasked targets).
    pub(crate) ledger: Ledger,
    /// The losses of the micro-batches, each as a list of the terms of its loss; empty except on the last stage.
    pub(crate) losses: Vec<Vec<f64>>,
    /// The metrics of every micro-batch, each summed over the micro-batch's targets; empty except on a last stage that
    /// has metrics.
    pub(crate) metrics: Vec<Vec<f64>>,
}

impl Outcome {
    /// Whether all losses and gradient norms in this stage's report on a step are finite.
    pub(crate) fn is_finite(&self) -> bool {
        let losses = self.losses.iter().flatten();
        self.squared_norms.iter().map(|(_, square)| square).chain(losses).all(|number| number.is_finite())
    }
}

/// The totals of a step over all stages: losses, metrics, gradient norm, and number of gradient reductions over the
/// replicas.
pub(crate) struct Sums {
    /// Each term of the training step's loss, summed over the micro-batches.
    pub(crate) losses: Vec<f64>,
    /// Each metric of the training step, summed over the micro-batches.
    pub(crate) metrics: Vec<f64>,
    /// The global norm: the Euclidean norm of all gradients of all stages together, before clipping.
    pub(crate) gradient_norm: f64,
    /// The Euclidean norm of the gradient of each of the model's parameters, in layer order, before clipping.
    pub(crate) gradient_norms: Vec<(ParamId, f64)>,
    /// The number of times that stages added up the gradients of all data-parallel replicas: once for each stage, or 0
    /// if there is one replica.
    pub(crate) reductions: usize,
    /// The estimates of the gradient's squared norm and of the gradient noise (the sum of the variances of the
    /// gradient's elements for a batch of loss weight 1); `None` unless the step measures them.
    pub(crate) noise: Option<NoiseReport>,
}

impl Sums {
    /// Computes the totals of a step (losses, metrics, gradient norm) from the stages' reports, after a check that
    /// every stage has summed the gradients of all its micro-batches. `expected` has, for each replica, the number of
    /// its micro-batches and the sum of their loss weights (usually their numbers of unmasked targets); `weights` has
    /// the loss weight of every micro-batch of all replicas in the first term of the loss, from which the gradient
    /// noise is estimated.
    ///
    /// # Errors
    /// Returns [`LedgerError`] if a stage's gradient sum does not contain exactly its replica's part of the batch.
    pub(crate) fn of(outcomes: &[Outcome], expected: &[Ledger], weights: &[f64]) -> Result<Self, LedgerError> {
        agree(outcomes.iter().map(|outcome| (outcome.replica, outcome.stage, outcome.ledger.clone())), expected)?;
        let squares = || outcomes.iter().flat_map(|outcome| &outcome.squared_norms);
        let gradient_norm = squares().map(|(_, square)| square).sum::<f64>().sqrt();
        let gradient_norms = squares().map(|(id, square)| (*id, square.sqrt())).collect();
        let reductions = outcomes.iter().map(|outcome| outcome.reductions).sum();
        let noise = noise(outcomes, weights);
        let (losses, metrics) = (losses(outcomes), metrics(outcomes));
        Ok(Self { losses, metrics, gradient_norm, gradient_norms, reductions, noise })
    }

    /// Returns the verdict on the step for all stages: either to step their optimizers, with gradients clipped as
    /// configured, or to skip the step, because the loss or a gradient is not finite.
    pub(crate) fn verdict(&self, config: FlushConfig, step: usize) -> Verdict {
        let step = |scaling| Verdict::Step { scaling, examine: config.examines(step) };
        self.scaling(config).map_or(Verdict::Skip, step)
    }

    /// Returns how the step's gradients are clipped: not at all, by a factor, or by a clamp. The result is `None` if
    /// the loss or a gradient is not finite.
    pub(crate) fn scaling(&self, config: FlushConfig) -> Option<Scaling> {
        let finite = self.losses.iter().all(|loss| loss.is_finite()) && self.gradient_norm.is_finite();
        finite.then(|| config.clip.map_or(Scaling::Keep, |clip| clip.scaling(self.gradient_norm)))
    }
}

/// Returns each term of a step's loss, summed over the micro-batches in the order of the batch.
pub(crate) fn losses(outcomes: &[Outcome]) -> Vec<f64> {
    summed(outcomes.iter().flat_map(|outcome| outcome.losses.iter().cloned()))
}

/// Returns each metric of a step or an evaluation, summed over the micro-batches in the order of the batch.
pub(crate) fn metrics(outcomes: &[Outcome]) -> Vec<f64> {
    summed(outcomes.iter().flat_map(|outcome| outcome.metrics.iter().cloned()))
}

/// Estimates the gradient noise (the sum of the variances of the gradient's elements for a batch of loss weight 1) of a
/// step from the reports of all stages of all replicas. `weights` has the loss weights of all micro-batches, in the
/// first term of the loss. Returns `None` if the step did not measure the micro-batches' gradients, if fewer than two
/// micro-batches have a weight, or if a gradient is not finite.
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

/// Returns the sum of the lists of numbers in `each`, element by element. The lists have equal lengths; without any
/// list, the sum is empty.
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

    /// Tests that a step ends with an error if one stage's gradient sum has too few or too many micro-batches, or if
    /// their loss weights (numbers of targets) do not add up to those of the step. Without the error, the other stages
    /// would step their optimizers.
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
