//! Opens the training data of a language model ([`open_tokens`]): texts, which are turned into tokens once, or rows of
//! tokens.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use stageline_data::{Encode, TokenFile, TokenOptions, files_left_out, prepare};

use crate::data::documents::{Documents, TokenData};
use crate::data::evaluation::{HeldOut, WithEvaluation};
use crate::data::packed::{PackedDocuments, Packing};
use crate::data::rows::TokenRows;
use crate::data::windows::TokenWindows;
use crate::terminal::say;

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
///   With a prompt or a conversation, only the completion or the answers are trained on. The answers are what the chat
///   template marks by `{% generation %}`, or else the assistant's messages.
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
    let settings = &TokenSettings { end_of_document: end_of_document(path, settings)?, ..*settings };
    let (training, form) = open(path, settings, share)?;
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
}

/// Opens the data at `path`. The share `held_out` of the data, from 0 to below 1, is evaluated and not trained on. Also
/// returns the form of the samples.
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

/// Opens a JSON file of rows of tokens, with the form of its rows.
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

/// Whether `path` names a JSON file of rows of tokens, by its extension.
fn has_rows(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// Returns the token that is appended to every document of the data at `path`. The result is `None` if the settings
/// have no such token, or one that is larger than the size of the encoding's vocabulary. For texts, a line on the
/// terminal then says so.
fn end_of_document(path: &Path, settings: &TokenSettings) -> Result<Option<u32>> {
    let encoded = settings.encoding.vocabulary();
    match settings.end_of_document {
        Some(end) if end as usize > encoded => {
            say(format_args!(
                "no token is added to the end of a document: it would be {end}, and the tokenizer has {encoded} tokens"
            ))?;
            return Ok(None);
        }
        None if !has_rows(path) => {
            say("the model's settings have no eos_token_id, so no such token is added to the end of a text")?;
        }
        _ => {}
    }
    Ok(settings.end_of_document)
}

/// Prints how documents are packed into samples, and how many of them are cut or left out.
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

/// Returns an error if a text has a token that is not in the model's vocabulary of `vocabulary` tokens. The text's
/// encoding may have a larger vocabulary, for example with a token for padding.
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
mod tests {
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
}
