//! Encodes one document, or one piece of a text: [`Encoder`].

use std::iter;

use crate::tokens::answers::{check_length, conversation, reply};
use crate::tokens::encode::{Encode, SpecialTokens, check_known};
use crate::tokens::error::TokenError;
use crate::tokens::json_document::Document;
use crate::tokens::message::Chat;

/// Encodes documents with an encoding, and adds the encoding's special tokens to whole texts. Several threads may use
/// it concurrently.
pub(crate) struct Encoder<'a> {
    encoding: &'a dyn Encode,
    /// The special tokens that the encoding adds before and after a whole text.
    pub(crate) special: SpecialTokens,
}

/// The tokens of a document.
pub(crate) struct Encoded {
    /// The tokens of the document in order, divided into runs (consecutive tokens) with a flag each. The flag is true
    /// if the run's tokens are targets in the loss, and false if they are masked out.
    pub(crate) runs: Vec<(Vec<u32>, bool)>,
    /// Whether the document is a conversation. If so, no end-of-document token is appended, because the chat template
    /// ends the conversation.
    pub(crate) is_chat: bool,
}

impl<'a> Encoder<'a> {
    /// Creates an encoder. Returns an error if a special token of `encoding` is not in its vocabulary.
    pub(crate) fn new(encoding: &'a dyn Encode) -> Result<Self, TokenError> {
        let special = encoding.special_tokens();
        check_known(&special.before, encoding.vocabulary())?;
        check_known(&special.after, encoding.vocabulary())?;
        Ok(Self { encoding, special })
    }

    /// Returns the tokens of `piece`, a part of a text that begins at the byte offset `start` of the text.
    pub(crate) fn piece(&self, start: u64, piece: &[u8]) -> Result<Vec<u32>, TokenError> {
        let tokens = self.encoding.encode_bytes(piece).map_err(|error| error.in_piece(start))?;
        self.known(tokens)
    }

    /// Returns the tokens of a document from a JSON-lines file. The document is encoded as a whole, not in pieces.
    pub(crate) fn document(&self, document: &Document) -> Result<Encoded, TokenError> {
        let render = |variables| move |messages: &[_], asks| self.encoding.chat(messages, variables, asks);
        match document {
            Document::Text(text) => {
                let tokens = self.piece(0, text.as_bytes())?;
                Ok(self.whole(if tokens.is_empty() { Vec::new() } else { vec![(tokens, true)] }))
            }
            Document::Completion([prompt, completion]) => {
                let text = prompt.clone() + completion;
                let answers = iter::once(prompt.len()..text.len()).collect();
                Ok(self.whole(self.with_targets(&Chat { text, answers })?))
            }
            Document::Reply([prompt, completion], variables) => {
                self.chat(reply(prompt, completion, &render(variables))?)
            }
            Document::Conversation(messages, variables) => self.chat(conversation(messages, &render(variables))?),
        }
    }

    /// Adds the encoding's special tokens before and after a text, whose encoded tokens are `runs` (consecutive tokens
    /// with a target flag). An empty text gets none.
    fn whole(&self, mut runs: Vec<(Vec<u32>, bool)>) -> Encoded {
        if let Some((_, is_target)) = runs.first() {
            runs.insert(0, (self.special.before.clone(), *is_target));
            runs.push((self.special.after.clone(), true));
        }
        Encoded { runs, is_chat: false }
    }

    fn chat(&self, chat: Chat) -> Result<Encoded, TokenError> {
        Ok(Encoded { runs: self.with_targets(&chat)?, is_chat: true })
    }

    /// Encodes a conversation, or a prompt with its completion, as runs of tokens with a target flag. Only the tokens
    /// of `answers` are targets in the loss.
    fn with_targets(&self, Chat { text, answers }: &Chat) -> Result<Vec<(Vec<u32>, bool)>, TokenError> {
        check_length(text)?;
        let tokens = self.encoding.encode_targets(text, answers)?;
        let runs = tokens.chunk_by(|(_, one), (_, other)| one == other);
        runs.map(|run| Ok((self.known(run.iter().map(|(token, _)| *token).collect())?, run[0].1))).collect()
    }

    /// Returns `tokens` unchanged, or an error if one of them is not in the vocabulary.
    fn known(&self, tokens: Vec<u32>) -> Result<Vec<u32>, TokenError> {
        check_known(&tokens, self.encoding.vocabulary())?;
        Ok(tokens)
    }
}
