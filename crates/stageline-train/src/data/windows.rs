//! A source for language models that uses windows of a long text as samples ([`TokenWindows`]).

use std::ops::Range;

use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};
use stageline::Batch;
use stageline_data::{Epochs, Sampler, TokenFile};

use crate::data::Data;
use crate::data::documents::{Documents, Sample, TokenSamples, Tokens, batch, shown};
use crate::fingerprint::hexadecimal;

/// Maximum number of held-out windows per evaluation, to bound its duration.
const VALIDATION_WINDOWS: usize = 64;

/// Training data for a language model: consecutive windows of a tokenised text. Each window comes once per epoch, in an
/// order that a seed decides. In a window, every token but the first is a target, except prompts that are masked out
/// and, with [`Documents::Separate`], each document's first token.
pub struct TokenWindows {
    tokens: TokenFile,
    training: Range<u64>,
    epochs: Epochs,
    /// Zero-based index, in the tokenised text, of the first token of each window that is held out for validation.
    validation: Vec<u64>,
    /// The model's input length in tokens. A window has one more token, the last target.
    context: usize,
    documents: Documents,
}

impl TokenWindows {
    /// Creates training data from a tokenised text. Each sample is a window of `context + 1` tokens: inputs, and the
    /// last target. The fraction `held_out` of the tokens, at the end of the text, is used only for evaluation; with at
    /// least 20 documents, this part begins at a document boundary.
    ///
    /// # Errors
    /// Returns an error if the text is too short for a training window and, if some of it is held out, a held-out
    /// window.
    pub fn new(tokens: TokenFile, context: usize, held_out: f64, seed: u64) -> Result<Self> {
        let (training, rest) = match held_out {
            0.0 => (0..tokens.len(), 0..0),
            share => tokens.split(share)?,
        };
        let (window, lengths) = (context + 1, [&training, &rest].map(|range| range.end - range.start));
        ensure!(
            held_out > 0.0 || lengths[0] >= window as u64,
            "{} tokens are too few for windows of {window} tokens; give a shorter --context or more text",
            lengths[0]
        );
        ensure!(
            lengths[0] >= window as u64 && (held_out == 0.0 || lengths[1] >= window as u64),
            "{} tokens to train on and {} held out are too few for windows of {window} tokens; give a shorter --context, more \
             text, or another share --held-out (0 holds out nothing)",
            lengths[0],
            lengths[1]
        );
        // Consecutive windows share a token: the last target of one window is the first input of the next.
        let epochs = Epochs::new((lengths[0] - 1) / context as u64, seed)?;
        let windows = (lengths[1] as usize / window).min(VALIDATION_WINDOWS);
        let offsets = match windows {
            0 => Vec::new(),
            windows => Sampler::new(lengths[1], window, seed)?.evenly(windows),
        };
        let validation = offsets.into_iter().map(|offset| rest.start + offset).collect();
        Ok(Self { tokens, training, epochs, validation, context, documents: Documents::Joined })
    }

    /// Sets how several documents in one window are handled. By default, they are [`Joined`](Documents::Joined).
    #[must_use]
    pub fn documents(self, documents: Documents) -> Self {
        Self { documents, ..self }
    }

    /// Batches the windows that begin at the token indices `positions` of the text.
    fn windows(&self, positions: &[u64]) -> Result<Batch<TokenSamples, Tokens>> {
        let mut window = vec![0; self.context + 1];
        let mut samples = Vec::with_capacity(positions.len());
        for &position in positions {
            self.tokens.read(position, &mut window)?;
            let starts = self.documents.starts(&self.tokens, position, window.len());
            let mut sample = Sample::of_row(&window);
            for (at, target) in sample.targets.iter_mut().enumerate().map(|(at, target)| (at + 1, target)) {
                let begins = starts.as_ref().is_some_and(|starts| starts[at] == at);
                if begins || !self.tokens.is_target(position + at as u64) {
                    *target = None;
                }
            }
            sample.starts = starts.map(|starts| starts[..self.context].into());
            samples.push(sample);
        }
        Ok(batch(&samples))
    }
}

impl Data for TokenWindows {
    type Input = TokenSamples;
    type Target = Tokens;

    fn batch(&self, step: usize, samples: usize) -> Result<Batch<TokenSamples, Tokens>> {
        let windows = self.epochs.of_step(step as u64, samples).into_iter();
        self.windows(&windows.map(|at| self.training.start + at * self.context as u64).collect::<Vec<_>>())
    }

    fn validation(&self, samples: usize) -> Result<Vec<Batch<TokenSamples, Tokens>>> {
        self.validation.chunks(samples).map(|positions| self.windows(positions)).collect()
    }

    fn fingerprint(&self) -> String {
        // A different window length, held-out share or document handling gives different samples, and so a different
        // fingerprint.
        let mut sum = Sha256::new_with_prefix("windows once an epoch");
        sum.update(self.tokens.fingerprint());
        sum.update((self.context as u64).to_le_bytes());
        sum.update(self.training.end.to_le_bytes());
        sum.update([u8::from(self.documents == Documents::Separate)]);
        hexadecimal(sum)
    }

    fn samples_per_epoch(&self) -> Option<u64> {
        Some(self.epochs.samples())
    }

    fn tokens_per_sample(&self) -> Option<usize> {
        Some(self.context)
    }

    fn show_loss(&self, loss: f64) -> String {
        shown(loss)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use stageline_data::{Bytes, TokenOptions, prepare};

    use super::*;

    fn numbers(tokens: Tokens) -> Vec<i64> {
        tokens.into_data().iter::<i64>().collect()
    }

    #[test]
    fn every_token_of_a_window_is_the_target_of_those_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let text: Vec<u8> = (0..4000_u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(folder.path().join("text.txt"), &text).unwrap();
        let options = TokenOptions { folder: Some(folder.path().join("tokens")), ..TokenOptions::default() };
        let tokens = prepare(&folder.path().join("text.txt"), &Bytes, &options).unwrap();
        let windows = TokenWindows::new(tokens, 10, 0.1, 3).unwrap();
        let mut batches = windows.validation(5).unwrap();
        batches.extend((0..50).map(|step| windows.batch(step, 4).unwrap()));
        for batch in batches {
            for ((input, starts), target) in batch.into_micro_batches(1).unwrap() {
                assert!(input.dims()[1] == 10 && starts.is_none());
                for (input, target) in numbers(input).into_iter().zip(numbers(target)) {
                    assert_eq!((input + 1) % 251, target);
                }
            }
        }
        let long = TokenWindows::new(TokenFile::open(windows.tokens.path()).unwrap(), 500, 0.1, 3).map(drop);
        let message = "3600 tokens to train on and 400 held out are too few for windows of 501 tokens; give a shorter \
                       --context, more text, or another share --held-out (0 holds out nothing)";
        assert_eq!(long.unwrap_err().to_string(), message);
        let long = TokenWindows::new(TokenFile::open(windows.tokens.path()).unwrap(), 5000, 0.0, 3).map(drop);
        let message = "4000 tokens are too few for windows of 5001 tokens; give a shorter --context or more text";
        assert_eq!(long.unwrap_err().to_string(), message);
        let all = TokenWindows::new(TokenFile::open(windows.tokens.path()).unwrap(), 500, 0.0, 3).unwrap();
        assert!(all.validation(4).unwrap().is_empty() && all.training == (0..4000));
        // The first 3,600 tokens are for training. Their 359 windows have 10 targets each, and tokens 1 to 3,590 are
        // targets once.
        assert_eq!(windows.samples_per_epoch(), Some(359));
        let mut targets = Vec::new();
        for step in 0..359 {
            let batch = windows.batch(step, 1).unwrap().into_micro_batches(1).unwrap();
            targets.extend(batch.into_iter().flat_map(|(_, target)| numbers(target)));
        }
        targets.sort_unstable();
        let mut expected: Vec<_> = (1..3591).map(|at| at % 251).collect();
        expected.sort_unstable();
        assert_eq!(targets, expected);
        assert!(windows.validation.iter().all(|start| (3600..3990).contains(start)));
    }
}
