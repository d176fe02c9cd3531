//! Opens a language model's training data ([`open_tokens`]): texts, which are tokenised once, or rows of tokens.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use stageline_data::{Encode, TokenFile, TokenOptions, files_left_out, prepare};

use crate::data::documents::{Documents, Targets, TokenData};
use crate::data::evaluation::{HeldOut, WithEvaluation};
use crate::data::packed::{PackedDocuments, Packing};
use crate::data::rows::TokenRows;
use crate::data::windows::TokenWindows;
use crate::terminal::say;

/// Default maximum sample length, in tokens, for windows of a text.
const LONGEST_WINDOW: usize = 256;
const LONGEST_PACKED: usize = 1024;

/// Settings for [`open_tokens`]: how a text is tokenised and divided into samples.
pub struct TokenSettings<'a> {
    /// The encoding that tokenises the text, such as a tokenizer.
    pub encoding: &'a dyn Encode,
    /// The end-of-document token, appended to every document that does not already end with it; `None` appends nothing.
    /// It is not appended to conversations, because their chat template ends them. If the encoding's vocabulary lacks
    /// the token, a message says so, and nothing is appended.
    pub end_of_document: Option<u32>,
    /// The model's vocabulary size. All token ids of the training data must be below it; the encoding's own vocabulary
    /// may be larger.
    pub vocabulary: usize,
    /// The length, in tokens, of the longest sequence that the model supports.
    pub positions: usize,
    /// The sample length in tokens, from 1 to `positions`. `None` stands for `positions`, but at most 256 for windows
    /// of a text and 1024 for packed documents. For a JSON file of rows, only `None` and the row length minus 1 are
    /// valid.
    pub context: Option<usize>,
    /// The handling of several documents in one sample. `None` stands for `Packed` if the data has prompts or
    /// conversations, and otherwise for `Joined`. For a JSON file of rows, which has no documents, only `None` and
    /// `Joined` are valid.
    pub documents: Option<Documents>,
    /// The choice of the tokens of prompts and conversations that are targets; the others are masked out in the loss.
    pub targets: Targets,
    /// The data on which the model is evaluated: a held-out share of the training data, or a separate dataset.
    pub held_out: HeldOut<'a>,
    /// The seed for the random order of the samples.
    pub seed: u64,
}

impl<'a> TokenSettings<'a> {
    /// Returns settings for a model with `vocabulary` tokens and sequences of up to `positions` tokens: no
    /// end-of-document token, no held-out data, seed 0, and defaults for the rest.
    pub fn new(encoding: &'a dyn Encode, vocabulary: usize, positions: usize) -> Self {
        Self {
            encoding,
            end_of_document: None,
            vocabulary,
            positions,
            context: None,
            documents: None,
            targets: Targets::default(),
            held_out: HeldOut::Share(0.0),
            seed: 0,
        }
    }
}

/// Opens a language model's training data, and tokenises texts once. The path is one of these:
///
/// - A text file, or a folder of text files.
/// - A JSON-lines file. Each line has a `text`, a `prompt` with its `completion`, or the `messages` of a conversation.
///   With a prompt or a conversation, only the completion or the answers are targets, unless `settings` has
///   [`Targets::All`]. The answers are what the chat template marks by `{% generation %}`, or else the assistant's
///   messages.
/// - A `.json` file with rows of tokens ([`TokenRows`]).
///
/// # Errors
/// Returns an error if the data cannot be read, is too short, or has tokens or lengths that the model does not support.
pub fn open_tokens(path: &Path, settings: &TokenSettings) -> Result<TokenData> {
    let share = match settings.held_out {
        HeldOut::Share(share) => share,
        HeldOut::Data(_) => 0.0,
    };
    ensure!((0.0..1.0).contains(&share), "--held-out: the share is {share}; give at least 0 and less than 1");
    let settings = &TokenSettings { end_of_document: end_of_document(path, settings)?, ..*settings };
    let (training, form) = open(path, settings, share)?;
    let HeldOut::Data(path) = settings.held_out else { return Ok(training) };
    // Evaluation samples have the same form as training samples, so that the losses can be compared.
    let settings = TokenSettings { context: Some(form.context), documents: Some(form.documents), ..*settings };
    let (evaluation, _) =
        open(path, &settings, 0.0).with_context(|| format!("the data for evaluation, {}", path.display()))?;
    Ok(Arc::new(WithEvaluation { training, evaluation }))
}

/// The format of a dataset's samples: input length in tokens (`context`), and how documents share a sample. Evaluation
/// data is opened in the format of the training data.
struct Form {
    context: usize,
    documents: Documents,
}

/// Opens the dataset at `path`, with the share `held_out` (from 0 to below 1) held out for evaluation. Also returns the
/// sample format, so that a separate evaluation dataset can use the same one.
fn open(path: &Path, settings: &TokenSettings, held_out: f64) -> Result<(TokenData, Form)> {
    let TokenSettings { vocabulary, positions, context, .. } = *settings;
    if has_rows(path) {
        return rows(path, settings);
    }
    if let Some(context) = context {
        ensure!(context > 0, "samples of 0 tokens; give a context of 1 or more");
        ensure!(
            context <= positions,
            "samples of {context} tokens: the model is made for {positions}; give a shorter context"
        );
    }
    let options = TokenOptions { end_of_document: settings.end_of_document, ..TokenOptions::default() };
    let tokens = prepare(path, settings.encoding, &options)?;
    check_vocabulary(&tokens, vocabulary)?;
    say(format_args!("{}: {} tokens in {} documents", path.display(), tokens.len(), tokens.documents()))?;
    let reason = "because the folder has JSON-lines files";
    match &*files_left_out(path)? {
        [] => {}
        [one] => say(format_args!("{} is not read, {reason}", one.display()))?,
        [first, others @ ..] => {
            say(format_args!("{} and {} more files are not read, {reason}", first.display(), others.len()))?;
        }
    }
    let by_default = if tokens.has_prompts() { Documents::Packed } else { Documents::Joined };
    let tokens = match settings.targets {
        Targets::Answers => tokens,
        Targets::All => tokens.training_on_prompts(),
    };
    let documents = settings.documents.unwrap_or(by_default);
    let longest = if documents == Documents::Packed { LONGEST_PACKED } else { LONGEST_WINDOW };
    let context = context.unwrap_or(positions.min(longest));
    let form = Form { context, documents };
    if documents != Documents::Packed {
        let windows = TokenWindows::new(tokens, context, held_out, settings.seed)?;
        return Ok((Arc::new(windows.documents(documents)), form));
    }
    let packed = PackedDocuments::new(tokens, context, held_out, settings.seed)?;
    tell(packed.packing(), context)?;
    Ok((Arc::new(packed), form))
}

/// Opens a JSON file of token rows, and returns its sample format too. Returns an error if `settings` ask for another
/// sample length, or for separate documents.
fn rows(path: &Path, settings: &TokenSettings) -> Result<(TokenData, Form)> {
    let rows = TokenRows::read(path)?;
    let context = rows.context();
    if let Some(asked) = settings.context.filter(|asked| *asked != context) {
        bail!(
            "{}: its rows have a context of {context} tokens, and the samples one of {asked}; give a context of {context}, or rows of \
             {} tokens",
            path.display(),
            asked + 1
        );
    }
    ensure!(
        matches!(settings.documents, None | Some(Documents::Joined)),
        "{}: rows of tokens have no documents that could be separate or packed; join the documents, or give a text",
        path.display()
    );
    rows.check(settings.vocabulary, settings.positions.saturating_add(1))?;
    Ok((Arc::new(rows), Form { context, documents: Documents::Joined }))
}

/// Whether `path` is a JSON file of token rows, judged by its extension (`.json`).
pub(super) fn has_rows(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// Returns the token to append to every document at `path`. If the settings have no such token, or the encoding lacks
/// it, prints a message and returns `None`. For rows of tokens, a missing token is not reported.
fn end_of_document(path: &Path, settings: &TokenSettings) -> Result<Option<u32>> {
    match settings.end_of_document {
        Some(end) if !settings.encoding.may_end_document(end) => {
            if !has_rows(path) {
                say(format_args!(
                    "no token is added to the end of a document: it would be {end}, which the tokenizer does not have"
                ))?;
            }
            return Ok(None);
        }
        None if !has_rows(path) => {
            say("the model's settings have no eos_token_id, so no such token is added to the end of a text")?;
        }
        _ => {}
    }
    Ok(settings.end_of_document)
}

/// Prints the packing statistics `packing`: how documents were packed into samples of `context` tokens, and how many
/// were divided, truncated or left out.
fn tell(packing: Packing, context: usize) -> Result<()> {
    let Packing { samples, divided, cut, lost_tokens, beyond, left_out, padding } = packing;
    say(format_args!("{samples} samples of {context} tokens, of which {:.1}% are padding", 100.0 * padding))?;
    if divided > 0 {
        say(format_args!("{divided} documents are longer than a sample, and are divided"))?;
    }
    if cut > 0 {
        tracing::warn!(
            "{cut} prompts or conversations are longer than a sample, and lose {lost_tokens} tokens at their ends; a longer \
             context keeps more"
        );
    }
    if beyond > 0 {
        tracing::warn!(
            "{beyond} prompts or conversations are left out, because none of their first {context} tokens is trained on; a longer \
             context keeps them"
        );
    }
    if left_out > 0 {
        say(format_args!("{left_out} documents are left out, because none of their tokens is trained on"))?;
    }
    Ok(())
}

/// Returns an error if the text has a token id of `vocabulary` (the model's vocabulary size) or more. The encoding's
/// own vocabulary may be larger, for example because of a padding token.
fn check_vocabulary(tokens: &TokenFile, vocabulary: usize) -> Result<()> {
    if tokens.vocabulary() > vocabulary {
        let largest = tokens.largest_token()?;
        ensure!(
            (largest as usize) < vocabulary,
            "the text has the token id {largest}, and the model knows only ids below {vocabulary}; use the model's own tokenizer"
        );
    }
    Ok(())
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use stageline::nn::MASKED;
    use stageline_data::Bytes;

    use super::*;

    #[test]
    fn tokens_that_the_model_lacks_are_refused_if_the_text_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        std::fs::write(&path, "abc").unwrap();
        let options = TokenOptions { folder: Some(folder.path().join("tokens")), ..TokenOptions::default() };
        let tokens = prepare(&path, &Bytes, &options).unwrap();
        check_vocabulary(&tokens, 100).unwrap();
        let message =
            "the text has the token id 99, and the model knows only ids below 99; use the model's own tokenizer";
        assert_eq!(check_vocabulary(&tokens, 99).unwrap_err().to_string(), message);
    }

    #[test]
    fn prompts_are_targets_only_if_all_tokens_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "{\"prompt\": \"2 + 2 = \", \"completion\": \"4.\"}\n").unwrap();
        let opened = |targets| {
            let settings = TokenSettings { context: Some(20), targets, ..TokenSettings::new(&Bytes, 256, 64) };
            open_tokens(&path, &settings).unwrap()
        };
        let [answers, all] = [Targets::Answers, Targets::All].map(opened);
        let trained = |data: &TokenData| {
            let batches = data.batch(0, 1).unwrap().into_micro_batches(1).unwrap();
            let targets =
                batches.into_iter().flat_map(|(_, target)| target.into_data().iter::<i64>().collect::<Vec<_>>());
            targets.filter(|target| *target != MASKED).map(|target| target as u8 as char).collect::<String>()
        };
        assert_eq!((trained(&answers).as_str(), trained(&all).as_str()), ("4.", " + 2 = 4."));
        assert_ne!(answers.fingerprint(), all.fingerprint());
    }
}
