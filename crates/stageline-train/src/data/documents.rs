//! Batches of token ids for language models, and how documents are packed into samples ([`Documents`]).

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::ValueEnum;
use stageline::nn::MASKED;
use stageline::{Batch, SharedInput};
use stageline_data::TokenFile;

use crate::data::Data;

/// A tensor of token ids, `[samples, length]`: a language model's input or its targets.
pub(crate) type Tokens = Tensor<2, Int>;

/// The input of the language models in `stageline-models`: the token ids, `[samples, length]`, and optionally the
/// document starts. These have the same shape, and give for each token the position in its sample at which the token's
/// document begins. Attention then stays within documents; with `None`, it may cross document boundaries.
pub type TokenSamples = (Tensor<2, Int>, Option<SharedInput<Tensor<2, Int>>>);

/// A source of batches for a language model, whose inputs and targets are token ids.
pub type TokenData = Arc<dyn Data<Input = TokenSamples, Target = Tokens>>;

/// The handling of several documents in one sample: whether attention crosses their boundaries, and whether documents
/// are packed whole.
///
/// With `Joined` and `Separate`, a sample is a window of consecutive tokens of a text, and may span several documents.
/// A document that is truncated by the window's edge is treated as a whole document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Documents {
    /// Train on each sample as one text. Attention crosses document boundaries, and positions count from the start of
    /// the sample. The target of a document's last token is the first token of the next document.
    #[default]
    Joined,
    /// Train on each document in a sample as if it were alone. Attention stays within documents, and positions count
    /// from the start of the document. A document's first token is never a target.
    ///
    /// This is the convention of the Transformers library for packed samples, [`DataCollatorWithFlattening`]: its
    /// `position_ids` restart at 0 for every sequence, and the first label of every sequence is -100.
    ///
    /// [`DataCollatorWithFlattening`]: https://huggingface.co/docs/transformers/main_classes/data_collator
    Separate,
    /// Fill each sample with whole documents, and padding for the rest. Train on each document as if it were alone, as
    /// with `separate`. A plain text that is longer than a sample is divided into several samples; a
    /// longer prompt or conversation is truncated at its end. Every sample comes once per epoch.
    ///
    /// See [`PackedDocuments`](crate::PackedDocuments).
    Packed,
}

/// The choice of the tokens of prompts and conversations that are targets; the others are masked out in the loss. In
/// plain texts, all tokens are targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Targets {
    /// Train only on the completions of prompts, and on the answers in conversations.
    #[default]
    Answers,
    /// Train on all tokens, including prompts and users' messages.
    All,
}

impl Documents {
    /// Returns the document starts of a window: for each token, the offset in the window at which its document begins,
    /// or 0 if the document begins before the window. Returns `None` unless the setting is `Separate`. The window has
    /// `length` tokens and begins at the zero-based index `position` of `tokens`.
    pub(crate) fn starts(self, tokens: &TokenFile, position: u64, length: usize) -> Option<Vec<usize>> {
        let start = |at| tokens.document_start(at).saturating_sub(position) as usize;
        (self == Self::Separate).then(|| (position..position + length as u64).map(start).collect())
    }
}

/// A sample for a language model: the input tokens, and for each of them the target, which is the next token. All lists
/// have the same length.
pub(crate) struct Sample {
    pub(crate) input: Vec<u32>,
    /// The target of each input token, usually the next token; `None` if the target is masked out in the loss.
    pub(crate) targets: Vec<Option<u32>>,
    /// Document starts: for each token, the position in the sample at which its document begins. `None` if attention
    /// crosses document boundaries.
    pub(crate) starts: Option<Vec<usize>>,
}

impl Sample {
    /// Makes a sample from consecutive tokens: the input is all but the last token, and the targets are all but the
    /// first.
    pub(crate) fn of_row(row: &[u32]) -> Self {
        let length = row.len() - 1;
        Self { input: row[..length].into(), targets: row[1..].iter().copied().map(Some).collect(), starts: None }
    }
}

/// Batches samples of equal length into tensors. Either all samples have `starts`, or none has.
pub(crate) fn batch(samples: &[Sample]) -> Batch<TokenSamples, Tokens> {
    let shape = [samples.len(), samples[0].input.len()];
    let input = samples.iter().flat_map(|sample| &sample.input).map(|token| *token as i32);
    let targets = samples.iter().flat_map(|sample| &sample.targets);
    let targets = targets.map(|target| target.map_or(MASKED as i32, |token| token as i32));
    let starts = samples.iter().map(|sample| sample.starts.as_deref()).collect::<Option<Vec<_>>>();
    let starts = starts.map(|starts| {
        let starts = starts.into_iter().flatten().map(|start| *start as i32);
        SharedInput::new(tensor(starts, shape))
    });
    Batch::new((tensor(input, shape), starts), tensor(targets, shape))
}

/// Formats a language model's mean loss for the user, with its perplexity.
pub(crate) fn shown(loss: f64) -> String {
    format!("loss {loss:.4}, perplexity {:.2}", loss.exp())
}

/// Returns an integer tensor, such as token ids, on the device of [`host`].
pub(crate) fn tensor(numbers: impl Iterator<Item = i32>, shape: [usize; 2]) -> Tokens {
    Tokens::from_data(TensorData::new(numbers.collect::<Vec<_>>(), shape), &host())
}

/// Returns the device on which batches are created: the CPU with the crate's feature `flex`, and otherwise burn's
/// default device.
pub(crate) fn host() -> Device {
    #[cfg(feature = "flex")]
    {
        Device::flex()
    }
    #[cfg(not(feature = "flex"))]
    Device::default()
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use stageline_data::{Bytes, TokenOptions, prepare};

    use super::*;
    use crate::data::Data;
    use crate::data::windows::TokenWindows;

    /// Tests samples of a text that is the alphabet, divided into four documents. Each letter belongs to one document,
    /// so the test knows where documents begin in a sample, and which targets to expect.
    #[test]
    fn separate_documents_begin_anew_and_their_first_tokens_are_no_targets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alphabet.jsonl");
        let lines = ["abc", "defgh", "i", "jklmnopqrstuvwxyz"].map(|text| format!("{{\"text\": \"{text}\"}}\n"));
        std::fs::write(&path, lines.concat()).unwrap();
        let options = TokenOptions { folder: Some(folder.path().join("tokens")), ..TokenOptions::default() };
        let windows = TokenWindows::new(prepare(&path, &Bytes, &options).unwrap(), 6, 0.0, 3).unwrap();
        let windows = windows.documents(Documents::Separate);
        let is_first = |letter: i64| b"adij".iter().any(|first| i64::from(*first) == letter);
        let numbers = |tokens: Tokens| tokens.into_data().iter::<i64>().collect::<Vec<_>>();
        let mut masked = 0;
        let pieces = |step| windows.batch(step, 2).unwrap().into_micro_batches(2).unwrap();
        for ((input, starts), targets) in (0..20).flat_map(pieces) {
            let (letters, starts, targets) = (numbers(input), numbers(starts.unwrap().get()), numbers(targets));
            for at in 0..6 {
                let start = (0..=at).rev().find(|at| is_first(letters[*at])).unwrap_or(0);
                let next = letters[at] + 1;
                let target = if is_first(next) { MASKED } else { next };
                assert_eq!((starts[at], targets[at]), (start as i64, target), "{letters:?} at {at}");
                masked += usize::from(target == MASKED);
            }
        }
        assert!(masked > 10, "{masked}");
    }
}
