//! Encodes all documents of a source (the text files to tokenise), in order and with bounded memory. A text, or a
//! prompt with its completion, gets the special tokens for its start and end. The end-of-document token follows, unless
//! it is already the document's last token. A conversation gets none of these tokens, because its chat template writes
//! all special tokens.
//!
//! Documents and pieces of texts are read in batches. All CPU cores encode a batch in parallel, and its tokens are
//! written in order.

use std::io::{self, BufRead, BufReader, Read};
use std::mem;
use std::path::Path;

use crate::tokens::encode::Encode;
use crate::tokens::encoder::{Encoded, Encoder};
use crate::tokens::error::TokenError;
use crate::tokens::json_document::Document;
use crate::tokens::json_lines::JsonLines;
use crate::tokens::options::TokenOptions;
use crate::tokens::other_formats::check_is_text;
use crate::tokens::parallel;
use crate::tokens::pieces::{LONGEST, Pieces};
use crate::tokens::source::Source;
use crate::tokens::write::TokenWriter;

/// Maximum length, in bytes, of a batch: documents, or pieces of a text, that are encoded in parallel. A longer
/// document is a batch of its own. Encoding takes over a hundred times as much host memory as the text.
const BATCH: usize = 8 << 20;

/// Encodes all documents of a source (the text files to tokenise), and writes their tokens with `writer`.
///
/// # Errors
/// Besides the errors of reading, encoding and writing, returns [`TokenError::Changed`] if a file changes during the
/// tokenisation.
pub(crate) fn encode_documents(
    source: &Source,
    encoding: &dyn Encode,
    options: &TokenOptions,
    writer: &mut TokenWriter,
) -> Result<(), TokenError> {
    let encoder = Encoder::new(encoding)?;
    for file in &source.files {
        check_is_text(&file.path, &mut file.open()?)?;
    }
    for file in &source.files {
        let opened = file.open()?;
        let mut documents = Documents { encoder: &encoder, end: options.end_of_document, path: &file.path, writer };
        if file.is_json_lines() {
            let reader = BufReader::with_capacity(1 << 16, opened);
            documents.lines(JsonLines::new(reader, &file.path, &options.text_field))?;
        } else {
            documents.text(opened, None)?;
        }
        file.check_unchanged()?;
    }
    Ok(())
}

/// Encodes the documents of one file, and writes their tokens.
struct Documents<'a> {
    encoder: &'a Encoder<'a>,
    /// The end-of-document token. It is appended to each document except conversations, unless it is already the
    /// document's last token. `None` appends nothing.
    end: Option<u32>,
    /// The path of the file whose documents are being encoded, for error messages.
    path: &'a Path,
    writer: &'a mut TokenWriter,
}

impl Documents<'_> {
    /// Encodes the documents of a JSON-lines file in batches. A text that is too long for one piece is encoded on its
    /// own. If several lines are invalid, returns the error for the first of them.
    fn lines(&mut self, mut lines: JsonLines<impl BufRead>) -> Result<(), TokenError> {
        let (mut batch, mut length) = (Vec::new(), 0);
        loop {
            let (line, document) = match lines.next() {
                Ok(Some(next)) => next,
                last => {
                    self.batch(&batch)?;
                    return last.map(drop);
                }
            };
            length += document.length();
            if length > BATCH {
                self.batch(&mem::take(&mut batch))?;
                length = document.length();
            }
            match document {
                Document::Text(text) if text.len() >= LONGEST => {
                    self.batch(&mem::take(&mut batch))?;
                    length = 0;
                    self.text(text.as_bytes(), Some(line))?;
                }
                document => batch.push((line, document)),
            }
        }
    }

    /// Encodes the documents of a batch in parallel, and writes their tokens in order. `batch` contains each document
    /// with its line number, counted from 1, for error messages.
    fn batch(&mut self, batch: &[(u64, Document)]) -> Result<(), TokenError> {
        let encoder = self.encoder;
        let encoded = parallel::map(batch, |(_, document)| encoder.document(document));
        for (encoded, (line, _)) in encoded.into_iter().zip(batch) {
            let Encoded { runs, is_chat } = encoded.map_err(|error| self.in_document(Some(*line), error))?;
            for (tokens, is_target) in &runs {
                self.writer.push(tokens, *is_target)?;
            }
            self.writer.end_document(if is_chat { None } else { self.end })?;
        }
        Ok(())
    }

    /// Encodes a text piece by piece, and writes its tokens, preceded and followed by the special tokens for the start
    /// and end of a text. A text without tokens gets no special tokens. `line` is the line number of a text from a
    /// JSON-lines file, or `None` if the text is a whole file.
    fn text(&mut self, text: impl Read, line: Option<u64>) -> Result<(), TokenError> {
        let (encoder, first) = (self.encoder, self.writer.tokens());
        let mut pieces = Pieces::new(text);
        loop {
            let batch = batch_of(&mut pieces).map_err(TokenError::io(self.path))?;
            if batch.is_empty() {
                break;
            }
            for tokens in parallel::map(&batch, |(start, piece)| encoder.piece(*start, piece)) {
                let tokens = tokens.map_err(|error| self.in_document(line, error))?;
                if self.writer.tokens() == first && !tokens.is_empty() {
                    self.writer.push(&encoder.special.before, true)?;
                }
                self.writer.push(&tokens, true)?;
            }
        }
        if self.writer.tokens() > first {
            self.writer.push(&encoder.special.after, true)?;
        }
        self.writer.end_document(self.end)
    }

    /// Adds the document's file and line number to an error from encoding the document.
    fn in_document(&self, line: Option<u64>, error: TokenError) -> TokenError {
        TokenError::Document { path: self.path.to_path_buf(), line, source: Box::new(error) }
    }
}

/// Reads a text's next pieces for one batch (at most [`BATCH`] / [`LONGEST`] pieces), each with its byte offset in the
/// text. Returns an empty list after the last piece.
fn batch_of(pieces: &mut Pieces<impl Read>) -> io::Result<Vec<(u64, Vec<u8>)>> {
    let mut batch = Vec::new();
    while batch.len() < BATCH / LONGEST
        && let Some((start, piece)) = pieces.next()?
    {
        batch.push((start, piece.to_vec()));
    }
    Ok(batch)
}
