//! The encoding of a `tokenizer.json`, as Hugging Face publishes it with a model: [`Tokenizer`].

use std::fmt;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokenizers::{Encoding, ModelWrapper, Token};

use crate::hex::hex;
use crate::tokens::chat_template::ChatTemplate;
use crate::tokens::chat_variables::ChatVariables;
use crate::tokens::encode::{Encode, SpecialTokens, check_known};
use crate::tokens::error::TokenError;
use crate::tokens::message::{Chat, Message};
use crate::tokens::panics::caught;
use crate::tokens::regular_file::open_file;

/// Maximum length of a `tokenizer.json` in bytes; a longer file is an error. The limit keeps a wrong file from filling
/// the host memory.
const MOST: u64 = 512 << 20;

/// The name of the file with the tokenizer in a model folder.
const FILE: &str = "tokenizer.json";

/// The names of files that show that a folder has a tokenizer, although in a format that this crate does not read.
const OTHER_FORMS: [&str; 8] = [
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "tekken.json",
    "tokenizer_config.json",
];

/// The encoding of a `tokenizer.json`, as Hugging Face publishes it with a model.
///
/// - The file's post-processor may add special tokens, such as `<s>`. As in the Transformers library, they are added to
///   whole texts: to documents, and by [`Encode::encode_whole`]. [`Encode::encode`] adds none.
/// - The file's truncation and padding settings are ignored, because truncation would drop the ends of long documents.
///   BPE dropout is ignored too, because a text must always have the same tokens.
/// - A special token's name in a text, such as `<|endoftext|>`, is encoded as that token, as in Hugging Face's Python
///   library.
/// - Conversations are rendered by the chat template in the tokenizer's folder: its `chat_template.jinja`, or else the
///   one in its `tokenizer_config.json`. The function `strftime_now` prints the UTC date at which the tokenizer was
///   opened, or the date that the environment variable `SOURCE_DATE_EPOCH` sets. Today's date is not part of the
///   fingerprint, so [`prepare`](crate::prepare) finds a token file on another day too.
pub struct Tokenizer {
    /// The path of the `tokenizer.json`, for error messages.
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    vocabulary: usize,
    special_tokens: SpecialTokens,
    chat: Option<ChatTemplate>,
    fingerprint: String,
}

impl Tokenizer {
    /// Reads the tokenizer of the model folder `folder` from its `tokenizer.json`. Returns `None` if the folder
    /// contains no tokenizer at all, as for a byte-level language model.
    ///
    /// # Errors
    /// - [`TokenError::OtherForm`] if the folder contains a tokenizer only in an unsupported format, such as
    ///   `tokenizer.model`.
    /// - An error of [`open`](Self::open) if the `tokenizer.json` cannot be read.
    pub fn in_folder(folder: &Path) -> Result<Option<Self>, TokenError> {
        let has = |name: &str| folder.join(name).symlink_metadata().is_ok();
        if has(FILE) {
            return Self::open(&folder.join(FILE)).map(Some);
        }
        match OTHER_FORMS.into_iter().find(|name| has(name)) {
            Some(name) => Err(TokenError::OtherForm { path: folder.join(name) }),
            None => Ok(None),
        }
    }

    /// Reads a tokenizer from a `tokenizer.json`, as Hugging Face publishes it with a model.
    ///
    /// # Errors
    /// - An error of [`open_file`](crate::open_file) if the file cannot be opened or is too long, or [`TokenError::Io`]
    ///   if it cannot be read.
    /// - [`TokenError::Tokenizer`] if the file is not a valid tokenizer, or its post-processor adds a special token
    ///   that is not in the vocabulary. The error also reports a panic of the tokenizer library on the file. For some
    ///   invalid files, the library panics only when a text is encoded or decoded. That call then returns this error.
    pub fn open(path: &Path) -> Result<Self, TokenError> {
        let mut json = Vec::new();
        open_file(path, MOST)?.take(MOST).read_to_end(&mut json).map_err(TokenError::io(path))?;
        let refuse = |message: String| TokenError::Tokenizer { path: path.to_path_buf(), message };
        let read = caught("tokenizers", || read(&json)).map_err(refuse)?;
        let (inner, vocabulary, special_tokens) = read.map_err(|error| refuse(error.to_string()))?;
        let has_token = |text: &str| inner.token_to_id(text).is_some();
        let chat = ChatTemplate::in_folder(path.parent().unwrap_or(Path::new("")), has_token);
        let of_chat = chat.as_ref().map_or("", ChatTemplate::fingerprint);
        let fingerprint = hex(&Sha256::new_with_prefix(&json).chain_update(of_chat).finalize());
        Ok(Self { path: path.to_path_buf(), inner, vocabulary, special_tokens, chat, fingerprint })
    }

    /// Returns the id of the token that is spelled `name`, such as `<|endoftext|>`; `None` if the vocabulary lacks this
    /// token.
    pub fn token(&self, name: &str) -> Option<u32> {
        self.inner.token_to_id(name)
    }

    /// Runs `call` with the tokenizer of the library `tokenizers`. If the library panics, the returned error says that
    /// the `tokenizer.json` is invalid, because only an invalid file causes a panic.
    fn call<T>(
        &self,
        call: impl FnOnce(&tokenizers::Tokenizer) -> Result<T, tokenizers::Error>,
    ) -> Result<T, TokenError> {
        let result = caught("tokenizers", || call(&self.inner));
        let result = result.map_err(|message| TokenError::Tokenizer { path: self.path.clone(), message })?;
        result.map_err(|error| TokenError::Encoding { message: error.to_string() })
    }
}

impl Encode for Tokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenError> {
        let encoding = self.call(|inner| inner.encode_fast(text, false))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn encode_targets(&self, text: &str, targets: &[Range<usize>]) -> Result<Vec<(u32, bool)>, TokenError> {
        // Unlike `encode_fast`, `encode` computes the byte offsets of tokens in the text.
        let encoding = self.call(|inner| inner.encode(text, false))?;
        let is_target = |&(start, end): &(usize, usize)| {
            // A token's offsets may exclude its spaces. A token that consists only of spaces has an empty range at
            // their end.
            let start = if start == end { start.saturating_sub(1) } else { start };
            let next = targets.partition_point(|target| target.end <= start);
            targets.get(next).is_some_and(|target| target.start < end)
        };
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(tokens.map(|(token, offsets)| (*token, is_target(offsets))).collect())
    }

    fn chat(&self, messages: &[Message], variables: &ChatVariables, asks_for_answer: bool) -> Result<Chat, TokenError> {
        self.chat.as_ref().ok_or(TokenError::NoChatTemplate)?.render(messages, variables, asks_for_answer)
    }

    fn special_tokens(&self) -> SpecialTokens {
        self.special_tokens.clone()
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenError> {
        check_known(tokens, self.vocabulary)?;
        self.call(|inner| inner.decode(tokens, false))
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn may_end_document(&self, token: u32) -> bool {
        self.inner.id_to_token(token).is_some()
    }

    /// Returns a SHA-256 of the `tokenizer.json` and the chat template in hexadecimal digits, which identifies the
    /// encoding.
    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Tokenizer");
        debug.field("vocabulary", &self.vocabulary).field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// Parses the bytes of a `tokenizer.json`. Returns the tokenizer, the size of its vocabulary, and the special tokens
/// that it adds to a text.
fn read(json: &[u8]) -> Result<(tokenizers::Tokenizer, usize, SpecialTokens), tokenizers::Error> {
    let mut inner = tokenizers::Tokenizer::from_bytes(json)?;
    inner.with_padding(None).with_truncation(None)?;
    if let ModelWrapper::BPE(model) = inner.get_model()
        && model.dropout.is_some()
    {
        let mut model = model.clone();
        model.dropout = None;
        inner.with_model(model);
    }
    // Token ids may have gaps, so the vocabulary size follows from the largest id, and not from the number of tokens.
    let largest = inner.get_vocab(true).into_values().max();
    let vocabulary = largest.ok_or("its vocabulary is empty")? as usize + 1;
    let special_tokens = special_tokens(&inner)?;
    let mut added = special_tokens.before.iter().chain(&special_tokens.after);
    if let Some(token) = added.find(|&&token| token as usize >= vocabulary) {
        let fault =
            format!("its post_processor adds the token {token}, which is not in its vocabulary of {vocabulary}");
        return Err(fault.into());
    }
    Ok((inner, vocabulary, special_tokens))
}

/// Returns the special tokens that a tokenizer's post-processor adds before and after a text, found by applying it to a
/// text of one token.
fn special_tokens(inner: &tokenizers::Tokenizer) -> Result<SpecialTokens, tokenizers::Error> {
    let text = Encoding::from_tokens(vec![Token::new(0, "a".into(), (0, 1))], 0);
    let whole = inner.post_process(text, None, true)?;
    let mut parts = whole.get_special_tokens_mask().iter().zip(whole.get_ids()).map(|(&mask, &id)| (mask == 1, id));
    let before: Vec<u32> = parts.by_ref().map_while(|(is_special, id)| is_special.then_some(id)).collect();
    let after: Vec<u32> = parts.map_while(|(is_special, id)| is_special.then_some(id)).collect();
    match before.len() + 1 + after.len() == whole.len() {
        true => Ok(SpecialTokens { before, after }),
        false => Err("its post_processor does not keep a text in one piece".into()),
    }
}
