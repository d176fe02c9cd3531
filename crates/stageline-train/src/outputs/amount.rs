//! The amount of data in a training step and in an epoch ([`Amount`]).

use anyhow::Result;
use stageline_report::Unit;

use crate::data::Data;
use crate::terminal::say;

/// The numbers of samples and tokens that a training reads, for its progress and its log.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// The number of samples in a step.
    samples: usize,
    /// The number of tokens in a sample; `None` if the samples are not sequences of tokens.
    tokens: Option<usize>,
    /// The number of samples in an epoch; `None` if the data does not tell it.
    epoch: Option<u64>,
}

impl Amount {
    /// Returns the amount of data of a training on `data` whose steps have `samples` samples.
    pub fn of<D: Data + ?Sized>(data: &D, samples: usize) -> Self {
        Self {
            samples,
            tokens: data.tokens_per_sample(),
            epoch: data.samples_per_epoch().filter(|samples| *samples > 0),
        }
    }

    /// Returns the unit of [`of_samples`](Self::of_samples) and [`per_step`](Self::per_step).
    pub fn unit(self) -> Unit {
        if self.tokens.is_some() { Unit::Tokens } else { Unit::Samples }
    }

    /// Returns the number of tokens in `samples` samples, including padding and tokens without a target. Returns the
    /// number of samples if they are not sequences of tokens.
    pub fn of_samples(self, samples: usize) -> f64 {
        samples as f64 * self.tokens.unwrap_or(1) as f64
    }

    /// Returns the number of tokens or samples that a step reads.
    pub fn per_step(self) -> f64 {
        self.of_samples(self.samples)
    }

    /// Returns the number of epochs in `steps` training steps; `None` if the data has no epochs.
    pub fn epochs(self, steps: usize) -> Option<f64> {
        Some(steps as f64 * self.samples as f64 / self.epoch? as f64)
    }

    /// Prints the number of epochs of a training of `steps` steps. Warns if a step has more samples than an epoch, so
    /// that it trains on samples several times. Does nothing if the data has no epochs.
    pub fn tell(self, steps: usize) -> Result<()> {
        let (Some(epochs), Some(samples)) = (self.epochs(steps), self.epoch) else { return Ok(()) };
        let of_step = self.samples;
        if of_step as u64 > samples {
            tracing::warn!(
                "a step has {of_step} samples and the training data {samples}, so a step trains on samples several times; \
                 lower --micro-batches or --micro-batch-size"
            );
        }
        say(format_args!("{steps} steps of {of_step} samples are {epochs:.2} epochs of {samples} samples"))
    }
}
