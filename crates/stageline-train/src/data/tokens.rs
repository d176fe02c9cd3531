//! Batches for language models, whose targets are the next tokens: opens their data ([`open_tokens`]), and windows of a
//! long text ([`TokenWindows`]).

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use stageline::Batch;
use stageline_data::{Encode, Epochs, Sampler, TokenFile, TokenOptions, files_left_out, prepare};

use crate::data::Data;
use crate::data::documents::{Documents, Sample, TokenData, TokenSamples, Tokens, batch, shown};
use crate::data::evaluation::{HeldOut, WithEvaluation};
use crate::data::packed::{PackedDocuments, Packing};
use crate::data::rows::TokenRows;
use crate::fingerprint::hexadecimal;
use crate::terminal::say;

/// The largest number of windows of held-out text that an evaluation reads.
const VALIDATION_WINDOWS: usize = 64;

/// The longest input of a model, in tokens, if its length is not given: for windows of a text, and for packed
/// documents.
const LONGEST_WINDOW: usize = 256;
const LONGEST_PACKED: usize = 1024;

/// The settings with which [`open_tokens`] turns a text into samples.
pub struct TokenSettings<'a> {
    /// The encoding that turns the text into tokens, such as a tokenizer.
    pub encoding: &'a dyn Encode,
    /// The token that is appended to every document, unless it is already the document's last token; `None` appends
    /// nothing. Conversations get no such token, because a chat template ends them. A token above the size of the
    /// encoding's vocabulary is not appended, and a line on the terminal says so.
    pub end_of_document: Option<u32>,
    /// The size of the model's vocabulary. Every token of the training data must be smaller. The vocabulary of the
    /// text's encoding may be larger.
    pub vocabulary: usize,
    /// The length, in tokens, of the longest input that the model takes.
    pub positions: usize,
    /// The length of a sample, in tokens: from 1 to `positions`. `None` stands for `positions`, but at most 256 for
    /// windows of a text and 1024 for packed documents. For a JSON file of rows it must be `None` or one token less
    /// than the length of the rows.
    pub context: Option<usize>,
    /// The treatment of several documents in one sample of a text. `None` stands for `Packed` if the data has prompts
    /// or conversations, and otherwise for `Joined`. It must be `None` or `Joined` for a JSON file of rows, which has
    /// no documents.
    pub documents: Option<Documents>,
    /// The data on which the model is evaluated.
    pub held_out: HeldOut<'a>,
    /// The seed of the random choice of samples for each training step.
    pub seed: u64,
}

/// Opens the training data of a language model, and turns texts into tokens once. The path is one of these:
///
/// - A text file, or a folder of text files.
/// - A JSON-lines file. Each line has a `text`, a `prompt` with its `completion`, or the `messages` of a conversation.
///   Of the last two, only the completion or the answers are trained on. The answers are what the chat template marks
///   by `{% generation %}`, or else the assistant's messages.
/// - A `.json` file with rows of tokens ([`TokenRows`]).
///
/// # Errors
/// Returns an error if the data cannot be read or is too short, or if the model does not support its tokens or lengths.
pub fn open_tokens(path: &Path, settings: &TokenSettings) -> Result<TokenData> {
    let share = match settings.held_out {
        HeldOut::Share(share) => share,
        HeldOut::Data(_) => 0.0,
    };
    ensure!((0.0..1.0).contains(&share), "a fraction of {share} is held out; give at least 0 and less than 1");
    let (training, form) = open(path, settings, share)?;
    if settings.end_of_document.is_none() && form.texts > 1 {
        say("the model's settings have no eos_token_id, so no such token is added to the end of a text")?;
    }
    let HeldOut::Data(path) = settings.held_out else { return Ok(training) };
    // Samples of the same form, so that the losses can be compared.
    let settings = TokenSettings { context: Some(form.context), documents: Some(form.documents), ..*settings };
    let (evaluation, _) =
        open(path, &settings, 0.0).with_context(|| format!("the data for evaluation, {}", path.display()))?;
    Ok(Arc::new(WithEvaluation { training, evaluation }))
}

/// The form of the samples of a text: the length of the input in tokens, and the treatment of documents.
struct Form {
    context: usize,
    documents: Documents,
    /// The number of texts; 0 for rows of tokens.
    texts: u64,
}

/// Opens the data at `path`. The share `held_out` of the data, from 0 to below 1, is evaluated and not trained on. Also
/// returns the form of the samples.
fn open(path: &Path, settings: &TokenSettings, held_out: f64) -> Result<(TokenData, Form)> {
    let TokenSettings { vocabulary, positions, context, .. } = *settings;
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        return rows(path, settings);
    }
    if let Some(context) = context {
        ensure!(context > 0, "samples of 0 tokens; give a context of 1 or more");
        ensure!(
            context <= positions,
            "samples of {context} tokens: the model is made for {positions}; give a shorter context"
        );
    }
    let options = TokenOptions { end_of_document: end_of_document(settings)?, ..TokenOptions::default() };
    let tokens = prepare(path, settings.encoding, &options)?;
    check_vocabulary(&tokens, vocabulary)?;
    say(format_args!("{}: {} tokens in {} documents", path.display(), tokens.len(), tokens.documents()))?;
    if let [first, others @ ..] = &*files_left_out(path)? {
        let (first, others) = (first.display(), others.len());
        say(format_args!("{first} and {others} more files are not read, because the folder has JSON-lines files"))?;
    }
    let by_default = if tokens.has_prompts() { Documents::Packed } else { Documents::Joined };
    let documents = settings.documents.unwrap_or(by_default);
    let longest = if documents == Documents::Packed { LONGEST_PACKED } else { LONGEST_WINDOW };
    let context = context.unwrap_or(positions.min(longest));
    let form = Form { context, documents, texts: tokens.documents() };
    if documents != Documents::Packed {
        let windows = TokenWindows::new(tokens, context, held_out, settings.seed)?;
        return Ok((Arc::new(windows.documents(documents)), form));
    }
    let packed = PackedDocuments::new(tokens, context, held_out, settings.seed)?;
    tell(packed.packing(), context)?;
    Ok((Arc::new(packed), form))
}

/// Opens a JSON file of rows of tokens, with the form of its rows.
fn rows(path: &Path, settings: &TokenSettings) -> Result<(TokenData, Form)> {
    let rows = TokenRows::read(path)?;
    let context = rows.tokens_per_sample();
    ensure!(
        settings.context.is_none_or(|asked| asked == context),
        "{}: its rows have a context of {context} tokens; give no context, or rows of another length",
        path.display()
    );
    ensure!(
        matches!(settings.documents, None | Some(Documents::Joined)),
        "{}: rows of tokens have no documents that could be separate or packed; join the documents, or give a text",
        path.display()
    );
    rows.check(settings.vocabulary, settings.positions.saturating_add(1))?;
    Ok((Arc::new(rows), Form { context, documents: Documents::Joined, texts: 0 }))
}

/// Returns the token that is appended to every document; `None` if none is set. A token that is larger than the size of
/// the encoding's vocabulary is not appended: a line on the terminal says so, and the result is `None`.
fn end_of_document(settings: &TokenSettings) -> Result<Option<u32>> {
    let encoded = settings.encoding.vocabulary();
    let known = settings.end_of_document.filter(|end| *end as usize <= encoded);
    if let (Some(end), None) = (settings.end_of_document, known) {
        say(format_args!(
            "no token is added to the end of a document: it would be {end}, and the tokenizer has {encoded} tokens"
        ))?;
    }
    Ok(known)
}

/// Prints how documents are packed into samples, and how many of them are cut or left out.
fn tell(packing: Packing, context: usize) -> Result<()> {
    let Packing { samples, divided, cut, lost_tokens, left_out, padding } = packing;
    say(format_args!("{samples} samples of {context} tokens, of which {:.1}% are padding", 100.0 * padding))?;
    if divided > 0 {
        say(format_args!("{divided} documents are longer, and are divided"))?;
    }
    if cut > 0 {
        tracing::warn!(
            "{cut} prompts or conversations are longer than a sample, and lose {lost_tokens} tokens at their ends; a longer \
             context keeps more"
        );
    }
    if left_out > 0 {
        say(format_args!("{left_out} documents are left out, because none of their tokens is trained on"))?;
    }
    Ok(())
}

/// Returns an error if a text has a token that is not in the model's vocabulary of `vocabulary` tokens. The text's
/// encoding may have a larger vocabulary, for example with a token for padding.
fn check_vocabulary(tokens: &TokenFile, vocabulary: usize) -> Result<()> {
    if tokens.vocabulary() > vocabulary {
        let largest = tokens.largest_token()?;
        ensure!(
            (largest as usize) < vocabulary,
            "the text has the token {largest}, and the model's vocabulary has {vocabulary}; is it the model's tokenizer?"
        );
    }
    Ok(())
}

/// Training data for a language model: a text that is divided into consecutive windows of tokens. Each window comes
/// once an epoch, in an order that a seed decides. In a window, every token is the target of the tokens before it.
pub struct TokenWindows {
    tokens: TokenFile,
    training: Range<u64>,
    epochs: Epochs,
    /// The positions in the text, in tokens, at which the windows held out for validation begin.
    validation: Vec<u64>,
    /// The length of the model's input, in tokens. A window of the text has one token more: the target of the last
    /// input token.
    context: usize,
    documents: Documents,
}

impl TokenWindows {
    /// Creates training data from a tokenised text. Each sample is a window of `context` tokens and one more token,
    /// which is the target of the last. `held_out` is the fraction of the tokens, at the end of the text, that is
    /// evaluated and not trained on. If there are at least 20 documents, only whole documents are held out.
    ///
    /// # Errors
    /// Returns an error if the text is too short for a window of training text and a window of held-out text.
    pub fn new(tokens: TokenFile, context: usize, held_out: f64, seed: u64) -> Result<Self> {
        let (training, rest) = match held_out {
            0.0 => (0..tokens.len(), 0..0),
            share => tokens.split(share)?,
        };
        let (window, lengths) = (context + 1, [&training, &rest].map(|range| range.end - range.start));
        ensure!(
            held_out > 0.0 || lengths[0] >= window as u64,
            "{} tokens are too few for windows of {window} tokens; give a shorter context or more text",
            lengths[0]
        );
        ensure!(
            lengths[0] >= window as u64 && (held_out == 0.0 || lengths[1] >= window as u64),
            "{} tokens to train on and {} held out are too few for windows of {window} tokens; give a shorter context or \
             more text",
            lengths[0],
            lengths[1]
        );
        // Each window begins with the last token of the one before it, which is its first input.
        let epochs = Epochs::new((lengths[0] - 1) / context as u64, seed)?;
        let windows = (lengths[1] as usize / window).min(VALIDATION_WINDOWS);
        let offsets = match windows {
            0 => Vec::new(),
            windows => Sampler::new(lengths[1], window, seed)?.evenly(windows),
        };
        let validation = offsets.into_iter().map(|offset| rest.start + offset).collect();
        Ok(Self { tokens, training, epochs, validation, context, documents: Documents::Joined })
    }

    /// Sets the treatment of several documents in one window of the text. By default they are joined.
    #[must_use]
    pub fn documents(self, documents: Documents) -> Self {
        Self { documents, ..self }
    }

    /// Returns a batch of windows of the text. `positions` lists where each window begins: the index of its first token
    /// in the text, counted from 0.
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
        // Other lengths, shares and documents give other samples.
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

    fn tokens_per_sample(&self) -> usize {
        self.context
    }

    fn show_loss(&self, loss: f64) -> String {
        shown(loss)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use stageline_data::Bytes;

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
                       context or more text";
        assert_eq!(long.unwrap_err().to_string(), message);
        let long = TokenWindows::new(TokenFile::open(windows.tokens.path()).unwrap(), 5000, 0.0, 3).map(drop);
        let message = "4000 tokens are too few for windows of 5001 tokens; give a shorter context or more text";
        assert_eq!(long.unwrap_err().to_string(), message);
        let all = TokenWindows::new(TokenFile::open(windows.tokens.path()).unwrap(), 500, 0.0, 3).unwrap();
        assert!(all.validation(4).unwrap().is_empty() && all.training == (0..4000));
        // The first 3,600 tokens are for training: 359 windows of 10 and a target, in which each token is a target once.
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

    #[test]
    fn tokens_that_the_model_lacks_are_refused_if_the_text_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        std::fs::write(&path, "abc").unwrap();
        let options = TokenOptions { folder: Some(folder.path().join("tokens")), ..TokenOptions::default() };
        let tokens = prepare(&path, &Bytes, &options).unwrap();
        check_vocabulary(&tokens, 100).unwrap();
        let message = "the text has the token 99, and the model's vocabulary has 99; is it the model's tokenizer?";
        assert_eq!(check_vocabulary(&tokens, 99).unwrap_err().to_string(), message);
    }
}
