//! The effective batch size with gradient accumulation and data-parallel replicas ([`EffectiveBatch`]): samples per
//! step, step counts, learning rates.
//!
//! A learning rate or a warm-up that was tuned for one number of micro-batches (M) is wrong for another M. These
//! formulas convert between them.

use std::fmt;

/// The effective batch size: the number of samples in one training step, over all micro-batches and replicas. Its
/// methods convert step counts and learning rates between batch sizes.
///
/// ```
/// use stageline::EffectiveBatch;
///
/// // A learning rate that was tuned for 64 samples, used with 2 replicas of 8 micro-batches of 16 samples.
/// let batch = EffectiveBatch { micro_batch: 16, micro_batches: 8, replicas: 2 };
/// assert_eq!(batch.samples(), 256);
/// assert_eq!(batch.linear_rate(1e-3, 64), 4e-3);
/// assert_eq!(batch.steps(100_000), 391); // a warm-up of 100,000 samples
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectiveBatch {
    /// The number of samples in one micro-batch.
    pub micro_batch: usize,
    /// M, the number of micro-batches that each data-parallel replica runs in a training step.
    pub micro_batches: usize,
    /// R, the number of data-parallel replicas, whose gradients are added up in every training step.
    pub replicas: usize,
}

impl EffectiveBatch {
    /// Returns the number of samples in a training step: samples in a micro-batch x micro-batches of a replica x
    /// replicas.
    pub fn samples(self) -> usize {
        self.micro_batch * self.micro_batches * self.replicas
    }

    /// Returns the smallest number of training steps that process at least `samples` samples.
    ///
    /// Use this method to convert a warm-up or decay that is given in samples to steps. It then covers the same number
    /// of samples even if the number of micro-batches changes.
    ///
    /// # Panics
    /// Panics if a step has no samples.
    pub fn steps(self, samples: usize) -> usize {
        samples.div_ceil(self.samples())
    }

    /// Returns the smallest number of training steps that process at least `tokens` tokens, if every sample has
    /// `context` tokens (the sequence length).
    ///
    /// # Panics
    /// Panics if a step has no tokens.
    pub fn steps_of_tokens(self, tokens: usize, context: usize) -> usize {
        tokens.div_ceil(self.samples() * context)
    }

    /// Compares the number of samples per step with `reference`, the number that the learning rate and the step counts
    /// were tuned for. Returns both numbers, or `None` if they are equal.
    pub fn change_from(self, reference: usize) -> Option<BatchChange> {
        BatchChange::between(reference, self.samples())
    }

    /// Scales the learning rate `rate`, which was tuned for `reference` samples per step, linearly to this batch size:
    /// returns `rate` x samples / `reference`.
    ///
    /// This is the rule for SGD (Goyal et al., 2017, [arXiv:1706.02677](https://arxiv.org/abs/1706.02677)).
    pub fn linear_rate(self, rate: f64, reference: usize) -> f64 {
        rate * self.samples() as f64 / reference as f64
    }

    /// Scales the learning rate `rate`, which was tuned for `reference` samples per step, to this batch size by the
    /// square root: returns `rate` x sqrt(samples / `reference`).
    ///
    /// This is the rule for Adam (Malladi et al., 2022, [arXiv:2205.10287](https://arxiv.org/abs/2205.10287)).
    pub fn square_root_rate(self, rate: f64, reference: usize) -> f64 {
        rate * (self.samples() as f64 / reference as f64).sqrt()
    }
}

/// A mismatch of batch sizes: the number of samples per step differs from the number that the learning rate and the
/// step counts were tuned for. `Display` formats it as a warning.
///
/// The mismatch arises if the number of micro-batches changes but the learning rate and the step counts stay the same.
/// The warning says how to correct them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchChange {
    /// The number of samples per training step that the learning rate and the step counts were tuned for.
    pub reference: usize,
    /// The actual number of samples per training step.
    pub samples: usize,
}

impl BatchChange {
    /// Returns the change from `reference` to `samples` samples per training step, or `None` if they are equal.
    pub(crate) fn between(reference: usize, samples: usize) -> Option<Self> {
        (reference != samples).then_some(Self { reference, samples })
    }
}

impl fmt::Display for BatchChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reference, samples } = self;
        let factor = *samples as f64 / (*reference).max(1) as f64;
        write!(
            f,
            "a step sees {samples} samples, but its schedule was chosen for {reference}: warm-ups and decays that are counted \
             in steps now take {factor:.3} times the samples, and the learning rate is for another batch size; multiply numbers of steps \
             by {:.3}, and the learning rate by {:.3} (Adam) or {factor:.3} (plain gradient descent)",
            1.0 / factor,
            factor.sqrt(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: EffectiveBatch = EffectiveBatch { micro_batch: 4, micro_batches: 8, replicas: 2 };

    #[test]
    fn learning_rates_scale_with_the_samples_per_step() {
        assert_eq!(BATCH.samples(), 64);
        assert_eq!(BATCH.linear_rate(0.1, 256), 0.025);
        assert_eq!(BATCH.square_root_rate(0.1, 256), 0.05);
        assert_eq!((BATCH.linear_rate(0.1, 64), BATCH.square_root_rate(0.1, 64)), (0.1, 0.1));
    }

    #[test]
    fn a_changed_batch_size_is_reported_with_its_factors() {
        assert_eq!(BATCH.change_from(64), None);
        let change = EffectiveBatch { micro_batches: 32, ..BATCH }.change_from(64).unwrap();
        assert_eq!(change, BatchChange { reference: 64, samples: 256 });
        let message = change.to_string();
        for part in ["sees 256 samples", "chosen for 64", "4.000 times the samples", "by 2.000 (Adam) or 4.000"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn schedules_in_samples_do_not_change_with_m() {
        let seen = |batch: EffectiveBatch| batch.steps(10_000) * batch.samples();
        for micro_batches in [1, 2, 4, 8, 16] {
            let seen = seen(EffectiveBatch { micro_batches, ..BATCH });
            assert!((10_000..10_000 + 8 * micro_batches).contains(&seen), "M={micro_batches}: {seen}");
        }
        assert_eq!(BATCH.steps_of_tokens(64 * 128 * 3, 128), 3);
        assert_eq!(BATCH.steps_of_tokens(64 * 128 * 3 + 1, 128), 4);
    }
}
