//! The batches of a training run: the trait of their source ([`Data`]), and threads that prefetch them.
//!
//! Input: a program's data source, or a file of tokens. Output: each step's batch, in order and ready when the step
//! begins; or an error if it cannot be made. This folder owns the prefetch threads and the data sources for language
//! models. It must not know settings, move batches to devices, or decide which steps run.
//!
//! - `open`: opens a language model's data (`open_tokens`).
//! - `windows`: a source for language models, of windows of a long text (`TokenWindows`).
//! - `rows`: a source for language models, of rows of tokens in a given order (`TokenRows`).
//! - `packed`: a source for language models, of whole documents packed into samples (`PackedDocuments`).
//! - `labelled`: a source for text classifiers (`LabelledTexts`).
//! - `documents`: how several documents in one sample are handled (`Documents`), and which tokens are targets
//!   (`Targets`).
//! - `evaluation`: which data a language model is evaluated on (`HeldOut`).
//! - `flags`: the command-line flags for a language model's data (`TokenFlags`).
//! - `show`: prints samples as text, with their targets marked (`show_samples`).
//! - `batch_fingerprint`: one hash of all tensors of batches, to compare them.
//! - `repeatable`: checks that a source returns the same batch each time for the same step.
//! - `prefetch`: prefetches batches on its own threads (`Batches`).

pub mod batch_fingerprint;
pub mod documents;
pub mod evaluation;
pub mod flags;
pub mod labelled;
pub mod open;
pub mod packed;
pub mod prefetch;
pub mod repeatable;
pub mod rows;
pub mod show;
pub mod windows;

use std::sync::Arc;

use anyhow::Result;
use stageline::{Batch, Payload};

/// The source of a training run's batches. Several threads call it at the same time, to prefetch batches for the next
/// training steps. `--read-ahead` (16 by default) sets the number of threads, and limits how many prefetched batches
/// are in memory besides those of the running steps.
///
/// A step's batch must depend only on the step index and the number of samples. A resumed training run then sees the
/// same samples in the same order.
///
/// A training run takes ownership of the data. At its end, it does not wait for threads that are still in
/// [`batch`](Self::batch), and drops the batches that they return. To use the data after the training run, pass a clone
/// of an [`Arc`].
pub trait Data: Send + Sync + 'static {
    /// The type of a batch's input, which the first stage of the pipeline receives.
    type Input: Payload;
    /// The type of a batch's targets, from which the last stage computes the loss.
    type Target: Payload;

    /// Returns the batch of the training step `step` (counted from 0), with `samples` samples. Its tensors should be on
    /// the CPU: the pipeline moves each micro-batch to the devices of its stages. Before its first step, a training run
    /// also requests small batches: of 1 and 2 samples, and of smaller micro-batches.
    ///
    /// Do not draw random numbers with `Tensor::random` in `batch`, not even after `Device::seed`, because all threads
    /// share burn's generator. Use your own generator, seeded with [`run.seed()`](crate::Run::seed) and the sample's
    /// index. As a check, a training run first reads the first sample of step 0 twice, and returns an error if the two
    /// differ. The check runs on one thread, so it misses some misuses of `Tensor::random`.
    ///
    /// # Errors
    /// Returns an error if the batch cannot be read or made. The training run then ends with this error. If checkpoints
    /// are on, it first saves a checkpoint of the completed steps.
    fn batch(&self, step: usize, samples: usize) -> Result<Batch<Self::Input, Self::Target>>;

    /// Returns batches of held-out samples for evaluation; empty by default. No batch may have more than `samples`
    /// samples, the size of a training batch. Called once, before the first step; the batches stay in memory. The loss
    /// and the metrics are means over all batches, weighted by the batches' loss weights.
    ///
    /// # Errors
    /// Returns an error if the held-out samples cannot be read or made.
    fn validation(&self, samples: usize) -> Result<Vec<Batch<Self::Input, Self::Target>>> {
        let _ = samples;
        Ok(Vec::new())
    }

    /// Returns a string that identifies the data; empty by default. Checkpoints store this fingerprint, and a training
    /// run whose data has a different fingerprint cannot resume them.
    fn fingerprint(&self) -> String {
        String::new()
    }

    /// Returns the number of samples in an epoch, for `--epochs` and the displayed number of epochs. `None`, the
    /// default, makes `--epochs` an error. If samples are drawn at random with replacement, return the number that
    /// would cover the data once, such as its number of tokens divided by the tokens per sample.
    fn samples_per_epoch(&self) -> Option<u64> {
        None
    }

    /// Returns the number of tokens in a sample, so that the progress display and the log can count tokens. Returns
    /// `None` by default, for samples that are not token sequences; samples are then counted instead.
    fn tokens_per_sample(&self) -> Option<usize> {
        None
    }

    /// Formats a validation loss as a string for the user. By default, this is the word `loss` and the value with four
    /// decimals.
    fn show_loss(&self, loss: f64) -> String {
        format!("loss {loss:.4}")
    }
}

impl<D: Data + ?Sized> Data for Arc<D> {
    type Input = D::Input;
    type Target = D::Target;

    fn batch(&self, step: usize, samples: usize) -> Result<Batch<Self::Input, Self::Target>> {
        D::batch(self, step, samples)
    }

    fn validation(&self, samples: usize) -> Result<Vec<Batch<Self::Input, Self::Target>>> {
        D::validation(self, samples)
    }

    fn fingerprint(&self) -> String {
        D::fingerprint(self)
    }

    fn samples_per_epoch(&self) -> Option<u64> {
        D::samples_per_epoch(self)
    }

    fn tokens_per_sample(&self) -> Option<usize> {
        D::tokens_per_sample(self)
    }

    fn show_loss(&self, loss: f64) -> String {
        D::show_loss(self, loss)
    }
}
