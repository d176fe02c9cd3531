//! Encodes all documents of a source (the text files to tokenise), in order and with bounded memory. A text gets the
//! special tokens for its start and end, and then the end-of-document token unless it already ends with it. So does a
//! prompt with its completion. A conversation gets none of them: its chat template writes all special tokens.

use std::io::{BufReader, Read};
use std::iter;
use std::path::Path;

use crate::tokens::answers::{check_length, conversation, reply};
use crate::tokens::encode::{Encode, SpecialTokens, check_known};
use crate::tokens::error::TokenError;
use crate::tokens::foreign::check_is_text;
use crate::tokens::json_document::Document;
use crate::tokens::json_lines::JsonLines;
use crate::tokens::message::Chat;
use crate::tokens::options::TokenOptions;
use crate::tokens::pieces::Pieces;
use crate::tokens::source::Source;
use crate::tokens::write::TokenWriter;

/// Encodes all documents of a source (the text files to tokenise), and writes their tokens with `writer`.
///
/// # Errors
/// Besides the errors of reading, encoding and writing, returns [`TokenError::Changed`] if a file changes meanwhile.
pub(crate) fn encode_documents(
    source: &Source,
    encoding: &dyn Encode,
    options: &TokenOptions,
    writer: &mut TokenWriter,
) -> Result<(), TokenError> {
    let special = encoding.special_tokens();
    check_known(&special.before, encoding.vocabulary())?;
    check_known(&special.after, encoding.vocabulary())?;
    let mut documents = Documents { encoding, special, end: options.end_of_document, writer };
    for file in &source.files {
        check_is_text(&file.path, &mut file.open()?)?;
    }
    for file in &source.files {
        let opened = file.open()?;
        let path = file.path.as_path();
        let of = |line| move |error| TokenError::Document { path: path.to_path_buf(), line, source: Box::new(error) };
        if file.is_json_lines() {
            let mut lines = JsonLines::new(BufReader::with_capacity(1 << 16, opened), path, &options.text_field);
            while let Some((line, document)) = lines.next()? {
                documents.document(document, path, of(Some(line)))?;
            }
        } else {
            documents.text(opened, path, of(None))?;
        }
        file.check_unchanged()?;
    }
    Ok(())
}

/// Encodes documents, and writes their tokens.
struct Documents<'a> {
    encoding: &'a dyn Encode,
    special: SpecialTokens,
    /// The token that ends each document.
    end: Option<u32>,
    writer: &'a mut TokenWriter,
}

impl Documents<'_> {
    /// Encodes a text piece by piece, and writes its tokens. The special tokens for the start and end of a text are
    /// written around them, unless the text has no tokens. The closure `of` adds the file and the line to an error of
    /// the encoding.
    fn text(&mut self, text: impl Read, path: &Path, of: impl Fn(TokenError) -> TokenError) -> Result<(), TokenError> {
        let first = self.writer.tokens();
        let mut pieces = Pieces::new(text);
        while let Some((start, piece)) = pieces.next().map_err(TokenError::io(path))? {
            let tokens = self.encoding.encode_bytes(piece).map_err(|error| error.in_piece(start));
            let tokens = tokens.and_then(|tokens| self.known(tokens)).map_err(&of)?;
            if self.writer.tokens() == first && !tokens.is_empty() {
                self.writer.push(&self.special.before, true)?;
            }
            self.writer.push(&tokens, true)?;
        }
        if self.writer.tokens() > first {
            self.writer.push(&self.special.after, true)?;
        }
        self.writer.end_document(self.end)
    }

    /// Encodes a document of a JSON-lines file, and writes its tokens. The closure `of` adds the file and the line to
    /// an error of the encoding.
    fn document(
        &mut self,
        document: Document,
        path: &Path,
        of: impl Fn(TokenError) -> TokenError,
    ) -> Result<(), TokenError> {
        let encoding = self.encoding;
        let with = |variables| move |messages: &[_], asks| encoding.chat_with(messages, variables, asks);
        let (chat, is_chat) = match document {
            Document::Text(text) => return self.text(text.as_bytes(), path, of),
            Document::Completion([prompt, completion]) => {
                let text = prompt.clone() + &completion;
                (Ok(Chat { answers: iter::once(prompt.len()..text.len()).collect(), text }), false)
            }
            Document::Reply([prompt, completion], variables) => (reply(&prompt, &completion, &with(&variables)), true),
            Document::Conversation(messages, variables) => (conversation(&messages, &with(&variables)), true),
        };
        chat.and_then(|chat| self.with_targets(&chat, is_chat)).map_err(of)
    }

    /// Encodes a document with a prompt or a conversation, and writes its tokens. Only the tokens of its answers are
    /// marked as targets of training.
    fn with_targets(&mut self, Chat { text, answers }: &Chat, is_chat: bool) -> Result<(), TokenError> {
        check_length(text)?;
        let tokens = self.encoding.encode_targets(text, answers)?;
        let Some((_, is_target)) = tokens.first() else { return Ok(()) };
        let special = if is_chat { SpecialTokens::default() } else { self.special.clone() };
        self.writer.push(&special.before, *is_target)?;
        for run in tokens.chunk_by(|(_, one), (_, other)| one == other) {
            self.writer.push(&self.known(run.iter().map(|(token, _)| *token).collect())?, run[0].1)?;
        }
        self.writer.push(&special.after, true)?;
        self.writer.end_document(if is_chat { None } else { self.end })
    }

    /// Returns the tokens, or an error if one is not in the vocabulary.
    fn known(&self, tokens: Vec<u32>) -> Result<Vec<u32>, TokenError> {
        check_known(&tokens, self.encoding.vocabulary())?;
        Ok(tokens)
    }
}
