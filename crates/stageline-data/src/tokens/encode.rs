//! The interface of an encoding, which turns text into tokens and back: [`Encode`].

use std::ops::Range;
use std::str;

use crate::tokens::chat_variables::ChatVariables;
use crate::tokens::error::TokenError;
use crate::tokens::message::{Chat, Message};

/// The special tokens that an encoding adds to a whole text, such as `<s>` before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// The ids of the special tokens that an encoding adds before a text, in their order; empty for none.
    pub before: Vec<u32>,
    /// The ids of the special tokens that an encoding adds after a text, in their order; empty for none.
    pub after: Vec<u32>,
}

/// An encoding, which turns text into tokens (numbers from 0) and tokens back into text. Implement it for a tokenizer
/// of your own.
///
/// The same text must always give the same tokens, because a token file is written once and used by many runs. Threads
/// may use an encoding at the same time.
pub trait Encode: Send + Sync {
    /// Returns the tokens of a text or of a part of it, in their order and without special tokens for a text's start
    /// and end.
    ///
    /// # Errors
    /// Returns [`TokenError::Encoding`] if the text cannot be encoded.
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenError>;

    /// Returns the tokens of a text that may not be valid UTF-8. By default such a text is an error; an encoding whose
    /// tokens are bytes overrides this method.
    ///
    /// # Errors
    /// Returns [`TokenError::NotUtf8`] if the encoding needs UTF-8 and the text is not, or an error of
    /// [`Encode::encode`].
    fn encode_bytes(&self, text: &[u8]) -> Result<Vec<u32>, TokenError> {
        let text = str::from_utf8(text).map_err(|error| TokenError::NotUtf8 { offset: error.valid_up_to() as u64 })?;
        self.encode(text)
    }

    /// Returns the tokens of a text, each with a flag: true if a model is trained to predict the token. `targets` are
    /// the ranges of the text to train on, in bytes and in ascending order. A token is a target if it has a character
    /// in one of them.
    ///
    /// By default, the first and last token of each range are found by encoding two beginnings of the text. One ends at
    /// the start of the range, and the other at its end. The tokens that such a beginning has in common with the whole
    /// text, counted from the first, lie before the place where the beginning ends.
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
            // The last token of the target may have characters after the end of the target.
            let end = (common(&through) + usize::from(common(&through) < through.len())).min(tokens.len());
            tokens[start.min(end)..end].iter_mut().for_each(|(_, is_target)| *is_target = true);
        }
        Ok(tokens)
    }

    /// Returns a conversation as the text that a chat model reads, with the special tokens of its chat template in it.
    /// The template reads `variables` besides the messages, such as the definitions of tools. If `asks_for_answer`, the
    /// text ends with the beginning of an answer, which the model continues.
    ///
    /// # Errors
    /// Returns [`TokenError::NoChatTemplate`] by default, or [`TokenError::Template`] if the template refuses the
    /// messages.
    fn chat(&self, messages: &[Message], variables: &ChatVariables, asks_for_answer: bool) -> Result<Chat, TokenError> {
        let _ = (messages, variables, asks_for_answer);
        Err(TokenError::NoChatTemplate)
    }

    /// Returns the tokens of a conversation for a model that continues it: they end with the beginning of an answer.
    ///
    /// # Errors
    /// Returns the errors of [`Encode::chat`] and [`Encode::encode`].
    fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, TokenError> {
        self.encode(&self.chat(messages, &ChatVariables::default(), true)?.text)
    }

    /// Returns the special tokens that belong before and after a whole text; none by default.
    fn special_tokens(&self) -> SpecialTokens {
        SpecialTokens::default()
    }

    /// Returns the tokens of a whole text, such as a prompt, between the special tokens for its start and end.
    ///
    /// # Errors
    /// Returns [`TokenError::Encoding`] if the text cannot be encoded.
    fn encode_whole(&self, text: &str) -> Result<Vec<u32>, TokenError> {
        let SpecialTokens { before, after } = self.special_tokens();
        Ok([before, self.encode(text)?, after].concat())
    }

    /// Returns the text that the tokens stand for. A character may consist of several tokens; if some of them are
    /// missing, it becomes U+FFFD.
    ///
    /// # Errors
    /// - [`TokenError::UnknownToken`] if a token is not in the vocabulary.
    /// - [`TokenError::Encoding`] if the tokens cannot be decoded.
    fn decode(&self, tokens: &[u32]) -> Result<String, TokenError>;

    /// Returns the size of an encoding's vocabulary. Every token of the encoding is a number below this size.
    fn vocabulary(&self) -> usize;

    /// Returns a text that identifies the encoding. It is part of the hash (key) by which an earlier token file is
    /// found. Two encodings may have the same fingerprint only if they give the same tokens for every text and every
    /// conversation.
    fn fingerprint(&self) -> String;
}

/// Checks that every token is below the size of the vocabulary. Otherwise returns an error with the first token that is
/// too large.
pub(crate) fn check_known(tokens: &[u32], vocabulary: usize) -> Result<(), TokenError> {
    let unknown = tokens.iter().find(|&&token| u64::from(token) >= vocabulary as u64);
    unknown.map_or(Ok(()), |&token| Err(TokenError::UnknownToken { token, vocabulary }))
}
