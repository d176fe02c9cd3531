//! The noise scale of the gradient over the steps of a run ([`NoiseScales`]), from the estimates of its measured steps.
//! A noise scale is a batch size, in units of loss weight: for a language model, a number of tokens.
//!
//! *Window.* The noise scale is a ratio, and the estimates of one step are too rough for it. The noise scale at a
//! measured step is therefore computed from a window of 9 measured steps: the step itself and 4 on each side, fewer at
//! both ends of the run. It is the mean variance of these steps divided by their mean squared norm.
//!
//! *Spikes.* A step whose gradient norm is more than twice the median of its window, such as in a spike of the loss,
//! would outweigh all others. Its estimates are therefore scaled down to twice the median. Other steps keep their
//! estimates: dividing each by its own norm would weigh strong signals less, and make the noise scale too large.
//!
//! *Unknown scales.* If the mean of the squared norms is not above 0, the gradient cannot be distinguished from its
//! noise, and the noise scale counts as infinite. A step that was not measured gets the noise scale of the nearest
//! measured step.
//!
//! *Signs.* If the true gradient were 0, the estimates of its squared norm would be positive as often as negative. So
//! the noise scale counts as known only if random signs would give at least as many positive estimates with a
//! probability of at most 10%. This needs 4 positive estimates of 4, 14 of 20, or 57 of 100. Otherwise the noise scale
//! is not known, whatever the ratio of the means is. There is one test for the whole run and not one for each window,
//! because in a long run some windows would pass by chance.
//!
//! *Steps to a loss.* At the noise scale N, a step with the batch size B and the best learning rate for B lowers the
//! loss in proportion to 1 / (1 + N / B). This is equation 2.7 of McCandlish et al. (2018,
//! [arXiv:1812.06162](https://arxiv.org/abs/1812.06162)). So a step of the run, with the batch size W, is worth (1 + N
//! / B) / (1 + N / W) steps with the batch size B. The sum over the run's steps is the number of steps with the batch
//! size B that reach the same loss.

use super::median::median;
use super::record::{SignalAndNoise, Step};
use super::run_log::RunLog;

/// Number of training steps with measured gradient noise that one noise scale averages over.
const WINDOW: usize = 9;

/// Threshold for a spike, as a multiple of the window's median gradient norm. A step with a larger norm is a spike,
/// whose estimates are scaled down.
const SPIKE: f64 = 2.0;

/// Minimum number of measured steps for computing the noise scale of a run's gradient.
const FEWEST: usize = 4;

/// The gradient's noise scales in a logged run, one for each training step that updated parameters. They predict how
/// many steps another batch size needs. A noise scale is the loss weight of the batch whose gradient has as much noise
/// as signal. The loss weight of a batch is the sum of its targets' weights; for a language model, the number of
/// unmasked tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct NoiseScales {
    of_steps: Vec<OfStep>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct OfStep {
    /// Loss weight of this training step's batch: the sum of its targets' weights; in most models, the number of
    /// tokens.
    batch: f64,
    /// Noise scale of the gradient at this training step, in units of loss weight. It is infinite if the estimated
    /// squared norm of the gradient is not above 0.
    scale: f64,
}

/// Significance level (10%) of the sign test for whether a gradient can be distinguished from its noise. The test
/// counts the positive estimates of the gradient's squared norm in the run. It passes if random signs would give at
/// least as many with a probability of at most 10%.
const BY_CHANCE: f64 = 0.1;

/// The reason why the noise scale of a run's gradient is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoNoise {
    /// The run has one micro-batch per step and one replica, so its gradient noise cannot be measured: the measurement
    /// compares the gradients of several micro-batches. Log a run with at least two micro-batches.
    #[error(
        "a run with M = 1 cannot measure the noise of its gradient; log a run with --micro-batches 2 or more and --noise-every 10"
    )]
    OneMicroBatch,
    /// No step of the run measured the gradient noise. Log a run with `--noise-every 10`.
    #[error("the log has no gradient noise; log a run with --noise-every 10 and --micro-batches 2 or more")]
    NotMeasured,
    /// The run measured the gradient noise in too few steps; a noise scale is an average over steps. Log a longer run,
    /// or one with a smaller `--noise-every`.
    #[error(
        "{measured} steps of the log measured the gradient noise, and {needed} are needed; log a longer run, or one with a smaller \
         --noise-every"
    )]
    TooFew {
        /// Number of logged steps that measured the gradient noise and updated parameters.
        measured: usize,
        /// Minimum number of steps with measured gradient noise for computing a noise scale.
        needed: usize,
    },
    /// The noise hides the gradient: the estimates of its squared norm are positive no more often than by chance, or
    /// their mean is not above 0 in any window of measured steps. Log a longer run, or larger batches.
    #[error(
        "the gradient cannot be told from its noise in the {measured} steps that measured it; log a longer run, one with a smaller \
         --noise-every, or one with a larger --micro-batches"
    )]
    Hidden {
        /// Number of logged steps that measured the gradient noise and updated parameters.
        measured: usize,
    },
}

impl RunLog {
    /// Returns the gradient's noise scale at each step of the logged run that updated parameters. Each noise scale is
    /// computed from a window of 9 measured steps.
    ///
    /// # Errors
    /// Returns [`NoNoise`] if too few steps measured the noise, or if the noise hides the gradient.
    pub fn noise_scales(&self) -> Result<NoiseScales, NoNoise> {
        let updated: Vec<&Step> = self.steps.iter().filter(|step| step.gradient_norm.is_some()).collect();
        let estimates = updated
            .iter()
            .enumerate()
            .filter_map(|(at, step)| Some((at, (step.noise.as_ref()?.total, step.gradient_norm?))));
        let (at, totals): (Vec<_>, Vec<_>) = estimates.unzip();
        match totals.len() {
            // With several replicas, M = 1 is enough, because each replica has its own micro-batch.
            0 if (self.plan.micro_batches(), self.run.replicas) == (1, 1) => return Err(NoNoise::OneMicroBatch),
            0 => return Err(NoNoise::NotMeasured),
            measured @ ..FEWEST => return Err(NoNoise::TooFew { measured, needed: FEWEST }),
            _ => {}
        }
        let scales = windowed_scales(&totals);
        if !exceeds_chance(totals.iter().map(|(total, _)| total.squared_norm)) || scales.iter().all(Option::is_none) {
            return Err(NoNoise::Hidden { measured: totals.len() });
        }
        let nearest = |step: usize| {
            let after = at.partition_point(|measured| *measured < step);
            let candidates = [after.saturating_sub(1), after.min(at.len() - 1)];
            candidates.into_iter().min_by_key(|&candidate| at[candidate].abs_diff(step)).unwrap_or(0)
        };
        let of_step = |(number, step): (usize, &&Step)| OfStep {
            batch: step.weight,
            scale: scales[nearest(number)].unwrap_or(f64::INFINITY),
        };
        // A step whose targets all have weight 0 changes nothing, so it is left out.
        let of_steps = updated.iter().enumerate().map(of_step).filter(|step| step.batch > 0.0);
        Ok(NoiseScales { of_steps: of_steps.collect() })
    }
}

impl NoiseScales {
    /// Returns how many optimizer steps (not rounded) a training run with another batch size needs to reach the logged
    /// run's final loss. Its batches have the loss weight `batch` (the sum of their targets' weights), and its learning
    /// rate is the best for this batch size.
    pub fn steps(&self, batch: f64) -> f64 {
        self.of_steps.iter().map(|step| step.worth(batch)).sum()
    }

    /// Returns the median of the gradient's noise scale over the steps of the run, as a loss weight (for a language
    /// model, a number of tokens). If the number of steps is even, this is the larger of the two middle values. It is
    /// infinite if the noise scale is infinite at half of the steps or more.
    pub fn typical(&self) -> f64 {
        let mut scales: Vec<_> = self.of_steps.iter().map(|step| step.scale).collect();
        scales.sort_by(f64::total_cmp);
        scales.get(scales.len() / 2).copied().unwrap_or(f64::INFINITY)
    }

    /// Returns the gradient's noise scale at the last step of the run that updated parameters, as a loss weight (for a
    /// language model, a number of tokens). It is infinite if the estimated squared norm of the gradient, averaged
    /// around this step, is not above 0.
    pub fn last(&self) -> f64 {
        self.of_steps.last().map_or(f64::INFINITY, |step| step.scale)
    }
}

impl OfStep {
    /// Returns how many steps (not rounded) with batches of loss weight `batch` lower the loss as much as this logged
    /// step.
    fn worth(self, batch: f64) -> f64 {
        if self.scale.is_infinite() {
            return self.batch / batch;
        }
        (1.0 + self.scale / batch) / (1.0 + self.scale / self.batch)
    }
}

impl SignalAndNoise {
    /// Returns a step's estimates, scaled down if the step is a spike: if its gradient norm `norm` is more than twice
    /// the median of `norms`, the norms in the step's window. This keeps a spike from outweighing other steps in an
    /// average.
    #[must_use]
    pub fn without_spike(self, norm: f64, norms: impl IntoIterator<Item = f64>) -> Self {
        let most = SPIKE * median(norms.into_iter()).unwrap_or(norm);
        let factor = if norm > most { (most / norm).powi(2) } else { 1.0 };
        Self { squared_norm: factor * self.squared_norm, variance: factor * self.variance }
    }

    /// Returns the gradient's noise scale from the estimates of several steps, as a loss weight (for a language model,
    /// a number of tokens). Returns `None` if the mean squared norm is not above 0, or there is no estimate.
    pub fn scale_of(estimates: &[Self]) -> Option<f64> {
        let sum = |figure: fn(&Self) -> f64| estimates.iter().map(figure).sum::<f64>();
        let (squared_norm, variance) = (sum(|estimate| estimate.squared_norm), sum(|estimate| estimate.variance));
        (squared_norm > 0.0).then(|| variance.max(0.0) / squared_norm)
    }
}

/// Returns the gradient's noise scale at each of several measured steps, in the order of the steps. Each noise scale is
/// computed from a window of up to 9 measured steps around its step. It is `None` if the mean estimate of the
/// gradient's squared norm in the window is not above 0.
fn windowed_scales(estimates: &[(SignalAndNoise, f64)]) -> Vec<Option<f64>> {
    let scale = |at: usize| {
        let window = window(estimates, at);
        let norms = || window.iter().map(|(_, norm)| *norm);
        let limited: Vec<_> = window.iter().map(|(estimate, norm)| estimate.without_spike(*norm, norms())).collect();
        SignalAndNoise::scale_of(&limited)
    };
    (0..estimates.len()).map(scale).collect()
}

/// Returns the gradient noise estimates of the window around the measured step with the index `at`. The window has this
/// step, and up to 4 measured steps on each side.
fn window<T>(estimates: &[T], at: usize) -> &[T] {
    &estimates[at.saturating_sub(WINDOW / 2)..(at + WINDOW / 2 + 1).min(estimates.len())]
}

/// Sign test for whether the gradient stands out from its noise: true if random signs would give at least as many
/// positive estimates of its squared norm with a probability of at most 10%.
fn exceeds_chance(squared_norms: impl ExactSizeIterator<Item = f64>) -> bool {
    let count = squared_norms.len();
    let positive = squared_norms.filter(|squared_norm| *squared_norm > 0.0).count();
    // The logarithm is used because the probability that all of many signs are positive is too small for a float.
    let mut logarithm = count as f64 * 0.5_f64.ln();
    let mut at_least = 0.0;
    for number in (positive..=count).rev() {
        at_least += logarithm.exp();
        logarithm += (number as f64 / (count - number + 1) as f64).ln();
    }
    at_least <= BY_CHANCE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_compared_with_a_fair_coin() {
        let exceeds = |positive: usize, count: usize| {
            let sign = |at: usize| if at < positive { 1.0 } else { -1.0 };
            exceeds_chance((0..count).map(sign))
        };
        // With random signs, the probabilities of as many positive ones or more are 1/16, (1 + 4)/16, 1/32, (1 + 5)/32,
        // (1 + 9 + 36)/512 and (1 + 9 + 36 + 84)/512.
        assert!(exceeds(4, 4) && !exceeds(3, 4) && exceeds(5, 5) && !exceeds(4, 5) && exceeds(7, 9) && !exceeds(6, 9));
        // For 7 and 6 positive signs of 8, the probabilities are (1 + 8)/256 and (1 + 8 + 28)/256.
        assert!(exceeds(7, 8) && !exceeds(6, 8) && !exceeds(0, 4));
        // Of 10,000 random signs, 5,000 are positive on average, with a standard deviation of 50 (half the root of
        // 10,000). The 90% quantile of the normal distribution is 1.2816 standard deviations above the mean.
        assert!(exceeds(5065, 10_000) && !exceeds(5064, 10_000));
    }
}
