//! The amount of data in a training step and in an epoch ([`Amount`]).

use anyhow::Result;
use stageline_report::Unit;

use crate::data::Data;
use crate::terminal::say;

/// The amount of data in a step and an epoch, in samples and tokens, for a run's progress display and log.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Number of samples in a training step's batch.
    samples: usize,
    /// Number of tokens in a sample; `None` if the samples are not token sequences.
    tokens: Option<usize>,
    /// Number of samples in an epoch; `None` if the data has no epochs.
    epoch: Option<u64>,
}

impl Amount {
    /// Returns the amount of data for a training run on `data` whose steps have `samples` samples.
    pub fn of<D: Data + ?Sized>(data: &D, samples: usize) -> Self {
        Self {
            samples,
            tokens: data.tokens_per_sample(),
            epoch: data.samples_per_epoch().filter(|samples| *samples > 0),
        }
    }

    /// Returns the unit of [`of_samples`](Self::of_samples) and [`per_step`](Self::per_step): tokens, or samples if
    /// these are not token sequences.
    pub fn unit(self) -> Unit {
        if self.tokens.is_some() { Unit::Tokens } else { Unit::Samples }
    }

    /// Returns the number of tokens in `samples` samples, including padding and masked-out targets. If samples are not
    /// token sequences, returns `samples` itself.
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

    /// Prints how many epochs `steps` training steps are. Warns if a step has more samples than an epoch, because
    /// samples are then repeated within a step. Does nothing if the data has no epochs.
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
