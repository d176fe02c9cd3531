//! The interface of an encoding, which converts text to tokens and back: [`Encode`].

use std::ops::Range;
use std::str;

use crate::tokens::chat_variables::ChatVariables;
use crate::tokens::error::TokenError;
use crate::tokens::message::{Chat, Message};

/// The special tokens that an encoding adds before and after a whole text, such as `<s>` before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// The ids of the special tokens that an encoding adds before a text, in order; empty for none.
    pub before: Vec<u32>,
    /// The ids of the special tokens that an encoding adds after a text, in order; empty for none.
    pub after: Vec<u32>,
}

/// The interface of an encoding, which converts text to token ids (numbers from 0) and token ids back to text.
/// Implement it for your own tokenizer.
///
/// The same text must always give the same tokens, because a token file is written once and used by many runs. Several
/// threads may use an encoding concurrently.
pub trait Encode: Send + Sync {
    /// Returns the token ids of a text, or of a part of it, in order and without the special tokens for a text's start
    /// and end.
    ///
    /// # Errors
    /// Returns [`TokenError::Encoding`] if the text cannot be encoded.
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenError>;

    /// Returns the token ids of a text that may not be valid UTF-8. By default, invalid UTF-8 is an error. A byte-level
    /// encoding overrides this method.
    ///
    /// # Errors
    /// Returns [`TokenError::NotUtf8`] if the encoding needs UTF-8 and the text is not, or an error of
    /// [`Encode::encode`].
    fn encode_bytes(&self, text: &[u8]) -> Result<Vec<u32>, TokenError> {
        let text = str::from_utf8(text).map_err(|error| TokenError::NotUtf8 { offset: error.valid_up_to() as u64 })?;
        self.encode(text)
    }

    /// Returns the tokens of a text, each with a flag that is true if the token is a target in the loss (not masked
    /// out). `targets` are the ranges of the text to train on, in bytes and in ascending order. A token is a target if
    /// at least one of its characters is in one of these ranges.
    ///
    /// By default, two prefixes of the text are encoded to find the tokens of a range: the text up to the range's
    /// start, and the text up to its end. The number of leading tokens that a prefix shares with the whole text is the
    /// token position at which the range begins or ends.
    ///
    /// # Errors
    /// Returns [`TokenError::Encoding`] if the text cannot be encoded.
    fn encode_targets(&self, text: &str, targets: &[Range<usize>]) -> Result<Vec<(u32, bool)>, TokenError> {
        let mut tokens: Vec<_> = self.encode(text)?.into_iter().map(|token| (token, false)).collect();
        for target in targets.iter().filter(|target| !target.is_empty()) {
            let common =
                |before: &[u32]| before.iter().zip(&tokens).take_while(|(one, (other, _))| *one == other).count();
            let start = common(&self.encode(&text[..target.start])?);
            let through = self.encode(&text[..target.end])?;
            // The last token of the target may extend beyond the end of the target.
            let end = (common(&through) + usize::from(common(&through) < through.len())).min(tokens.len());
            tokens[start.min(end)..end].iter_mut().for_each(|(_, is_target)| *is_target = true);
        }
        Ok(tokens)
    }

    /// Renders a conversation as the text that a chat model reads, including the special tokens of its chat template.
    /// `variables` are the template's inputs besides the messages, such as tool definitions. If `asks_for_answer`, the
    /// text ends with the generation prompt (the start of an answer), which the model continues.
    ///
    /// # Errors
    /// Returns [`TokenError::NoChatTemplate`] by default, or [`TokenError::Template`] if the template rejects the
    /// messages.
    fn chat(&self, messages: &[Message], variables: &ChatVariables, asks_for_answer: bool) -> Result<Chat, TokenError> {
        let _ = (messages, variables, asks_for_answer);
        Err(TokenError::NoChatTemplate)
    }

    /// Returns the tokens of a conversation for a model to continue: they end with the generation prompt (the start of
    /// an answer).
    ///
    /// # Errors
    /// Returns the errors of [`Encode::chat`] and [`Encode::encode`].
    fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, TokenError> {
        self.encode(&self.chat(messages, &ChatVariables::default(), true)?.text)
    }

    /// Returns the special tokens to add before and after a whole text; none by default.
    fn special_tokens(&self) -> SpecialTokens {
        SpecialTokens::default()
    }

    /// Returns the tokens of a whole text, such as a prompt, including the special tokens for its start and end.
    ///
    /// # Errors
    /// Returns [`TokenError::Encoding`] if the text cannot be encoded.
    fn encode_whole(&self, text: &str) -> Result<Vec<u32>, TokenError> {
        let SpecialTokens { before, after } = self.special_tokens();
        Ok([before, self.encode(text)?, after].concat())
    }

    /// Decodes tokens to text. A character may consist of several tokens. If some of them are missing, the character
    /// becomes U+FFFD.
    ///
    /// # Errors
    /// - [`TokenError::UnknownToken`] if a token is not in the vocabulary.
    /// - [`TokenError::Encoding`] if the tokens cannot be decoded.
    fn decode(&self, tokens: &[u32]) -> Result<String, TokenError>;

    /// Returns the size of the encoding's vocabulary. Every token id of the encoding is below this size.
    fn vocabulary(&self) -> usize;

    /// Whether the token `token` may be appended to documents. By default, this is true for every id of the vocabulary
    /// and for the first id beyond it. The latter is a new token, for encodings without an end-of-document token, such
    /// as bytes.
    fn may_end_document(&self, token: u32) -> bool {
        token as usize <= self.vocabulary()
    }

    /// Returns a string that identifies the encoding. It is part of a token file's cache key (a hash), so that earlier
    /// token files are reused only for the same encoding. Two encodings may have the same fingerprint only if they give
    /// the same tokens for every text and every conversation.
    fn fingerprint(&self) -> String;
}

/// Checks that every token id is below the size of the vocabulary. The error contains the first id that is too large.
pub(crate) fn check_known(tokens: &[u32], vocabulary: usize) -> Result<(), TokenError> {
    let unknown = tokens.iter().find(|&&token| u64::from(token) >= vocabulary as u64);
    unknown.map_or(Ok(()), |&token| Err(TokenError::UnknownToken { token, vocabulary }))
}
