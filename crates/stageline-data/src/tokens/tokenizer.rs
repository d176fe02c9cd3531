//! The encoding of a `tokenizer.json`, as Hugging Face publishes it with a model: [`Tokenizer`].

use std::fmt;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};
use tokenizers::{Encoding, Token};

use crate::tokens::encode::{Encode, SpecialTokens, check_known};
use crate::tokens::error::TokenError;
use crate::tokens::format::hex;
use crate::tokens::regular::open_file;

/// The largest length of a `tokenizer.json` in bytes, so that a wrong file is refused before it fills the memory.
const MOST: u64 = 512 << 20;

/// The encoding of a `tokenizer.json`, as Hugging Face publishes it with a model.
///
/// - The special tokens that the file's post-processor adds, such as `<s>`, are around whole texts: documents and
///   [`Encode::encode_whole`], as by the Transformers library. [`Encode::encode`] adds none.
/// - The truncation and padding that the file asks for are ignored, because truncation would cut off the ends of long
///   documents.
/// - A text that contains the name of a special token, such as `<|endoftext|>`, is encoded with that token, as by
///   the Python library.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocabulary: usize,
    special_tokens: SpecialTokens,
    fingerprint: String,
}

impl Tokenizer {
    /// Reads a tokenizer from a `tokenizer.json`, as Hugging Face publishes it with a model.
    ///
    /// # Errors
    /// - An error of [`open_file`](crate::open_file) if the file cannot be opened or is too long, or
    ///   [`TokenError::Io`] if it cannot be read.
    /// - [`TokenError::Tokenizer`] if the file is no tokenizer.
    pub fn open(path: &Path) -> Result<Self, TokenError> {
        let mut json = Vec::new();
        open_file(path, MOST)?.take(MOST).read_to_end(&mut json).map_err(TokenError::io(path))?;
        let refuse = |message: String| TokenError::Tokenizer { path: path.to_path_buf(), message };
        let mut inner = tokenizers::Tokenizer::from_bytes(&json).map_err(|error| refuse(error.to_string()))?;
        inner.with_padding(None).with_truncation(None).map_err(|error| refuse(error.to_string()))?;
        // The ids of a vocabulary may have gaps, so their number is not enough.
        let largest = inner.get_vocab(true).into_values().max();
        let vocabulary = largest.ok_or_else(|| refuse("its vocabulary is empty".into()))? as usize + 1;
        let special_tokens = special_tokens(&inner).map_err(|error| refuse(error.to_string()))?;
        Ok(Self { inner, vocabulary, special_tokens, fingerprint: hex(&Sha256::digest(&json)) })
    }

    /// Returns the number of the token with the name `name`, such as `<|endoftext|>`; `None` if the vocabulary has no
    /// such token.
    pub fn token(&self, name: &str) -> Option<u32> {
        self.inner.token_to_id(name)
    }
}

impl Encode for Tokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenError> {
        let encoding = self.inner.encode_fast(text, false).map_err(failed)?;
        Ok(encoding.get_ids().to_vec())
    }

    fn special_tokens(&self) -> SpecialTokens {
        self.special_tokens.clone()
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenError> {
        check_known(tokens, self.vocabulary)?;
        self.inner.decode(tokens, false).map_err(failed)
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Returns the SHA-256 of the `tokenizer.json` in hexadecimal digits, which identifies the encoding.
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

/// Returns the special tokens that a tokenizer's post-processor adds to a text, which are those that it adds to a text of
/// one token.
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

fn failed(error: tokenizers::Error) -> TokenError {
    TokenError::Encoding { message: error.to_string() }
}
