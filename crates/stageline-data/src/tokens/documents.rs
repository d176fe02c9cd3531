//! Encodes all documents of a source (the text files to tokenise), in order and with bounded memory. Each document gets
//! the special tokens for its start and end, and then the end-of-document token unless it already ends with it.

use std::io::{BufReader, Read};
use std::path::Path;

use crate::tokens::encode::{Encode, SpecialTokens, check_known};
use crate::tokens::error::TokenError;
use crate::tokens::json_lines::JsonLines;
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
    for file in &source.files {
        let opened = file.open()?;
        let path = file.path.as_path();
        if file.is_json_lines() {
            let mut lines = JsonLines::new(BufReader::with_capacity(1 << 16, opened), path, &options.text_field);
            while let Some((line, text)) = lines.next()? {
                encode_document(text.as_bytes(), path, Some(line), encoding, &special, writer)?;
                writer.end_document(options.end_of_document)?;
            }
        } else {
            encode_document(opened, path, None, encoding, &special, writer)?;
            writer.end_document(options.end_of_document)?;
        }
        file.check_unchanged()?;
    }
    Ok(())
}

/// Encodes one document piece by piece, and writes its tokens with `writer`. The special tokens for the start and end
/// of a document are written around them, unless the document has no tokens. An error names the file of the document
/// and, in a JSON-lines file, the line.
fn encode_document(
    document: impl Read,
    path: &Path,
    line: Option<u64>,
    encoding: &dyn Encode,
    special: &SpecialTokens,
    writer: &mut TokenWriter,
) -> Result<(), TokenError> {
    let first = writer.tokens();
    let mut pieces = Pieces::new(document);
    while let Some((start, piece)) = pieces.next().map_err(TokenError::io(path))? {
        let tokens = encoding.encode_bytes(piece).and_then(|tokens| {
            check_known(&tokens, encoding.vocabulary())?;
            Ok(tokens)
        });
        let tokens = tokens.map_err(|error| {
            let source = Box::new(error.in_piece(start));
            TokenError::Document { path: path.to_path_buf(), line, source }
        })?;
        if writer.tokens() == first && !tokens.is_empty() {
            writer.push(&special.before)?;
        }
        writer.push(&tokens)?;
    }
    if writer.tokens() > first {
        writer.push(&special.after)?;
    }
    Ok(())
}
