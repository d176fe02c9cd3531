//! Arithmetic of batch sizes, which is easy to get wrong once gradients are accumulated.

use std::fmt;

/// How many samples one optimizer step sees, and what follows from it.
///
/// ```
/// use stageline::EffectiveBatch;
///
/// // A rate that was right for 64 samples, on 2 replicas of 8 micro-batches of 16.
/// let batch = EffectiveBatch { micro_batch: 16, micro_batches: 8, replicas: 2 };
/// assert_eq!(batch.samples(), 256);
/// assert_eq!(batch.linear_rate(1e-3, 64), 4e-3);
/// assert_eq!(batch.steps(100_000), 391); // a warm-up of 100,000 samples
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectiveBatch {
    /// Samples in a micro-batch.
    pub micro_batch: usize,
    /// M: micro-batches a step.
    pub micro_batches: usize,
    /// Copies of the pipeline that step together.
    pub replicas: usize,
}

impl EffectiveBatch {
    /// Samples a step: micro-batch x M x replicas.
    pub fn samples(self) -> usize {
        self.micro_batch * self.micro_batches * self.replicas
    }

    /// How many steps see at least so many samples: for warm-ups and decays that are given in samples, which then do not
    /// change with M.
    ///
    /// # Panics
    /// If a step has no samples.
    pub fn steps(self, samples: usize) -> usize {
        samples.div_ceil(self.samples())
    }

    /// The same in tokens, where a sample has `context` of them.
    ///
    /// # Panics
    /// If a step has no tokens.
    pub fn steps_of_tokens(self, tokens: usize, context: usize) -> usize {
        tokens.div_ceil(self.samples() * context)
    }

    /// What is another than when learning rates and numbers of steps were chosen for steps of `reference` samples.
    pub fn change_from(self, reference: usize) -> Option<BatchChange> {
        BatchChange::between(reference, self.samples())
    }

    /// A learning rate that is right for `reference` samples, scaled in proportion to the samples of a step: the rule for
    /// plain gradient descent (Goyal et al., 2017, [arXiv:1706.02677](https://arxiv.org/abs/1706.02677)).
    pub fn linear_rate(self, rate: f64, reference: usize) -> f64 {
        rate * self.samples() as f64 / reference as f64
    }

    /// The same, scaled with the square root: the rule for Adam (Malladi et al., 2022,
    /// [arXiv:2205.10287](https://arxiv.org/abs/2205.10287)).
    pub fn square_root_rate(self, rate: f64, reference: usize) -> f64 {
        rate * (self.samples() as f64 / reference as f64).sqrt()
    }
}

/// Steps see another number of samples than their schedule was made for, as they do when M changes and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchChange {
    /// The samples for which learning rates and numbers of steps were chosen.
    pub reference: usize,
    /// The samples of a step.
    pub samples: usize,
}

impl BatchChange {
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
            "a step sees {samples} samples, but its schedule was chosen for {reference}: what counts steps, as warm-ups and \
             decays do, now takes {factor:.3} times the samples, and the learning rate is for another batch; give numbers of \
             steps by `EffectiveBatch::steps`, and multiply the learning rate by {:.3} (Adam) or {factor:.3} (plain gradient \
             descent)",
            factor.sqrt(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: EffectiveBatch = EffectiveBatch { micro_batch: 4, micro_batches: 8, replicas: 2 };

    #[test]
    fn rates_follow_the_samples() {
        assert_eq!(BATCH.samples(), 64);
        assert_eq!(BATCH.linear_rate(0.1, 256), 0.025);
        assert_eq!(BATCH.square_root_rate(0.1, 256), 0.05);
        assert_eq!((BATCH.linear_rate(0.1, 64), BATCH.square_root_rate(0.1, 64)), (0.1, 0.1));
    }

    #[test]
    fn a_change_of_m_is_told() {
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
