//! The source of a training's batches ([`Data`]).

use anyhow::Result;
use stageline::{Batch, Payload};

/// The source of all batches of a training, which several threads read ahead of the steps, each its own batches.
///
/// The batch of a step depends on the number of the step only, so that a resumed training sees the same samples in the
/// same order.
pub trait Data: Sync {
    /// The input of a batch, which the first stage of the pipeline receives.
    type Input: Payload;
    /// The targets of a batch, with which the last stage computes the loss.
    type Target: Payload;

    /// Returns the batch of the training step `step` (counted from 0), with `samples` samples.
    ///
    /// # Errors
    /// Returns the errors of the source; an error ends the training with a checkpoint of the steps before it.
    fn batch(&self, step: usize, samples: usize) -> Result<Batch<Self::Input, Self::Target>>;

    /// Returns the held-out samples, in batches of at most `samples` samples; none by default.
    ///
    /// # Errors
    /// Returns the errors of the source.
    fn validation(&self, samples: usize) -> Result<Vec<Batch<Self::Input, Self::Target>>> {
        let _ = samples;
        Ok(Vec::new())
    }

    /// Returns a text that identifies the data; empty by default. Checkpoints store the text, and a run with another
    /// text cannot resume them.
    fn fingerprint(&self) -> String {
        String::new()
    }

    /// Returns the number of tokens in a sample, from which the throughput in tokens a second is computed; 1 by
    /// default.
    fn tokens_per_sample(&self) -> usize {
        1
    }

    /// Formats a validation loss as text for the user; by default the word `loss` and the number with four decimals.
    fn show_loss(&self, loss: f64) -> String {
        format!("loss {loss:.4}")
    }
}
