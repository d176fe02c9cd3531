//! The batches of a training: the trait of their source ([`Data`]), and reading them ahead of the steps.
//!
//! Input: a program's source of batches, or a file of tokens. Output: the batch of each step, in order and ready when
//! the step begins; or the error of the step whose batch cannot be made. This folder owns the threads that read ahead,
//! and the sources for language models. It must not know settings, move batches to devices, or decide which steps run.
//!
//! - `open`: opens the data of language models (`open_tokens`).
//! - `windows`: windows of a long text as samples (`TokenWindows`).
//! - `rows`: a source for language models, of rows of tokens in a given order (`TokenRows`).
//! - `packed`: a source for language models, of whole documents (`PackedDocuments`).
//! - `labelled`: a source for models that classify texts (`LabelledTexts`).
//! - `documents`: the treatment of several documents in one sample (`Documents`).
//! - `evaluation`: what a training of a language model is evaluated on (`HeldOut`).
//! - `flags`: the flags of the data of a language model (`TokenFlags`).
//! - `show`: samples as text, with the parts that are trained on (`show_samples`).
//! - `batch_fingerprint`: one hash of all tensors of batches, to compare them.
//! - `repeatable`: the check that a source returns the same batch for the same step each time.
//! - `prefetch`: reads batches ahead of the steps on threads of its own (`Batches`).

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

/// The source of the batches of a training. Several threads call it at the same time, to read batches ahead of the
/// training steps. `--read-ahead` (16 by default) sets the number of threads, and the largest number of batches in
/// memory besides those of the running steps.
///
/// The batch of a step must depend only on the number of the step and the number of samples. A resumed training then
/// sees the same samples in the same order.
///
/// A training takes the data by value. At its end, it does not wait for threads that are still in
/// [`batch`](Self::batch), and drops what they read. A program that needs its data after the training gives a clone of
/// an [`Arc`].
pub trait Data: Send + Sync + 'static {
    /// The type of a batch's input, which the first stage of the pipeline receives.
    type Input: Payload;
    /// The type of a batch's targets, from which the last stage computes the loss.
    type Target: Payload;

    /// Returns the batch of the training step `step` (counted from 0), with `samples` samples. Its tensors should be on
    /// the CPU: the pipeline moves each micro-batch to the devices of its stages. `samples` may be smaller than in a
    /// step. Before its first step, a training run also reads batches of 1 and 2 samples and of smaller micro-batches.
    ///
    /// Do not draw random numbers with `Tensor::random` in `batch`, not even after `Device::seed`: all threads share
    /// burn's generator. Use a generator of your own, seeded with [`run.seed()`](crate::Run::seed) and the number of
    /// the sample. At its start, a training reads the first sample of step 0 twice, and refuses data that returns two
    /// different samples. This check runs on one thread, so it does not find all errors with `Tensor::random`.
    ///
    /// # Errors
    /// Returns an error if the batch cannot be read or made. The training then ends with this error, and with a
    /// checkpoint of the steps before it if checkpoints are on.
    fn batch(&self, step: usize, samples: usize) -> Result<Batch<Self::Input, Self::Target>>;

    /// Returns the batches of held-out samples on which the model is evaluated; empty by default. No batch may have
    /// more than `samples` samples, the number in a training step. The method is called once, before the first step,
    /// and its batches stay in memory. The loss and the metrics of all batches are averaged by their loss weights.
    ///
    /// # Errors
    /// Returns an error if the held-out samples cannot be read or made.
    fn validation(&self, samples: usize) -> Result<Vec<Batch<Self::Input, Self::Target>>> {
        let _ = samples;
        Ok(Vec::new())
    }

    /// Returns a text that identifies the data; empty by default. Checkpoints store this text. A run whose data has a
    /// different text cannot resume them.
    fn fingerprint(&self) -> String {
        String::new()
    }

    /// Returns the number of samples in an epoch; `None` by default. `--epochs` and the display of epochs need this
    /// number. Without it, `--epochs` is an error. Data that draws its samples at random with replacement has no
    /// natural epoch. It returns the number of samples that would cover it once, for example the number of its tokens
    /// divided by the tokens of a sample.
    fn samples_per_epoch(&self) -> Option<u64> {
        None
    }

    /// Returns the number of tokens in a sample, by which the progress and the log count the data. Returns `None` by
    /// default, for samples that are not sequences of tokens; samples are then counted.
    fn tokens_per_sample(&self) -> Option<usize> {
        None
    }

    /// Formats a validation loss as text for the user. The default, which an implementation may replace, is the word
    /// `loss` and the number with four decimals.
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
