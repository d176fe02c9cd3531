//! A language model's evaluation data: a held-out share of its training data, or a separate dataset ([`HeldOut`]).

use std::path::Path;

use anyhow::Result;
use stageline::Batch;

use crate::data::Data;
use crate::data::documents::{TokenData, TokenSamples, Tokens};

/// Selects a language model's evaluation data: a held-out share of its training data, or a separate dataset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeldOut<'a> {
    /// Hold out this share of the training data, from 0 to below 1, and evaluate on at most 64 samples of it.
    /// - Packed documents: a share of the documents.
    /// - Other texts: a share of the tokens, at the end of the text. With at least 20 documents, the held-out part
    ///   begins at a document boundary, so that no document is in both parts.
    /// - A JSON file with rows of tokens: nothing is held out, whatever the share.
    Share(f64),
    /// Evaluate on all samples of the separate dataset at this path, and train on all of the training data.
    Data(&'a Path),
}

/// Combines training data with a separate dataset for evaluation.
pub struct WithEvaluation {
    pub training: TokenData,
    pub evaluation: TokenData,
}

impl Data for WithEvaluation {
    type Input = TokenSamples;
    type Target = Tokens;

    fn batch(&self, step: usize, samples: usize) -> Result<Batch<TokenSamples, Tokens>> {
        self.training.batch(step, samples)
    }

    fn validation(&self, samples: usize) -> Result<Vec<Batch<TokenSamples, Tokens>>> {
        let all = self.evaluation.samples_per_epoch().and_then(|all| usize::try_from(all).ok()).unwrap_or(0);
        let (mut batches, mut first) = (Vec::new(), 0);
        while first < all {
            // `Data::batch` takes a step index, so the number of samples before a batch must be a multiple of its size.
            let most = samples.min(all - first);
            let count = (1..=most).rfind(|count| first.is_multiple_of(*count)).unwrap_or(1);
            batches.push(self.evaluation.batch(first / count, count)?);
            first += count;
        }
        Ok(batches)
    }

    fn fingerprint(&self) -> String {
        self.training.fingerprint() // without the evaluation data, because a resumed run may use other data for it
    }

    fn samples_per_epoch(&self) -> Option<u64> {
        self.training.samples_per_epoch()
    }

    fn tokens_per_sample(&self) -> Option<usize> {
        self.training.tokens_per_sample()
    }

    fn show_loss(&self, loss: f64) -> String {
        self.evaluation.show_loss(loss)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::fs;

    use stageline_data::Bytes;

    use super::*;
    use crate::data::open::{TokenSettings, open_tokens};

    /// Tests that every token of the data for evaluation is evaluated once, whatever the number of samples in a step.
    /// The training data must be the same as without data for evaluation.
    #[test]
    fn all_samples_of_the_data_for_evaluation_are_evaluated_once() {
        let folder = tempfile::tempdir().unwrap();
        let [training, evaluation] = ["training.txt", "evaluation.txt"].map(|name| folder.path().join(name));
        fs::write(&training, "ab".repeat(200)).unwrap();
        let text: Vec<u8> = (0..=70).collect();
        fs::write(&evaluation, &text).unwrap();
        let of_model = || TokenSettings::new(&Bytes, 256, 64);
        let settings = |held_out, context| TokenSettings { context: Some(context), held_out, seed: 3, ..of_model() };
        let alone = open_tokens(&training, &settings(HeldOut::Share(0.0), 10)).unwrap();
        let both = open_tokens(&training, &settings(HeldOut::Data(&evaluation), 10)).unwrap();
        assert!(alone.validation(4).unwrap().is_empty() && both.fingerprint() == alone.fingerprint());
        for (samples, expected) in [(1, 7), (3, 3), (4, 3), (7, 1), (20, 1)] {
            let mut targets: Vec<i64> = Vec::new();
            let batches = both.validation(samples).unwrap();
            assert_eq!(batches.len(), expected, "7 windows in batches of {samples}");
            for batch in batches {
                for (_, target) in batch.into_micro_batches(1).unwrap() {
                    targets.extend(target.into_data().iter::<i64>());
                }
            }
            targets.sort_unstable();
            assert_eq!(targets, (1..=70).collect::<Vec<i64>>(), "{samples} samples in a step");
        }
        let rows = folder.path().join("rows.json");
        fs::write(&rows, serde_json::to_string(&vec![vec![7; 11]; 5]).unwrap()).unwrap();
        let of_rows = open_tokens(&training, &settings(HeldOut::Data(&rows), 10)).unwrap();
        assert_eq!(of_rows.validation(2).unwrap().len(), 3);
        let error = open_tokens(&training, &settings(HeldOut::Data(&rows), 16)).map(drop).unwrap_err();
        assert!(format!("{error:#}").contains("its rows have a context of 10 tokens"), "{error:#}");
        fs::write(&evaluation, "short").unwrap();
        let error = open_tokens(&training, &settings(HeldOut::Data(&evaluation), 10)).map(drop).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("the data for evaluation") && error.contains("5 tokens are too few"), "{error}");
    }
}
