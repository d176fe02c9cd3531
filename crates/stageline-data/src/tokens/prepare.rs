//! Tokenises a source (the text files to tokenise) once, and reuses the token file in later calls: [`prepare`].

use std::path::Path;

use crate::hex::hex;
use crate::tokens::cache_key::cache_key;
use crate::tokens::documents::encode_documents;
use crate::tokens::encode::Encode;
use crate::tokens::error::TokenError;
use crate::tokens::file::TokenFile;
use crate::tokens::options::TokenOptions;
use crate::tokens::source::Source;
use crate::tokens::write::TokenWriter;

/// Tokenises a source (a text file, a JSON-lines file or a folder of them) and returns its token file. A later call
/// with the same arguments opens this token file without reading the source, unless the source has changed.
///
/// # Documents
/// - A file whose name ends in `.jsonl` or `.ndjson` contains one document per line, as a JSON object: the string in
///   the field [`TokenOptions::text_field`], a `prompt` and its `completion`, or the `messages` of a conversation.
///   Blank lines are skipped.
/// - Any other file is one document. Empty documents are left out.
/// - A folder contains the documents of its files and subfolders, in the order of the files' names. If some of the
///   files are JSON-lines files, only these are read ([`files_left_out`](crate::files_left_out) lists the others).
///   Symbolic links to folders, hidden entries (such as `.git`) and folders with a `CACHEDIR.TAG` (build outputs and
///   caches) are skipped.
///
/// # Special tokens
/// A conversation, or a prompt and completion given as messages, is rendered by [`Encode::chat`], which writes all of
/// its special tokens. Any other document gets these:
///
/// - The encoding's [special tokens](Encode::special_tokens) before and after the text, even if the text already begins
///   or ends with them, as `tokenizer(text)` in transformers adds them.
/// - [`TokenOptions::end_of_document`], unless it is already the document's last token.
///
/// # Limits
/// - A line of a JSON-lines file may have at most 256 MiB.
/// - A conversation, or a prompt with its completion, is encoded in one pass, so its text may have at most 8 MiB
///   ([`TokenError::LongDocument`]).
/// - A text of more than 512 KiB is encoded in pieces of at most this size. A piece ends after a line feed if possible,
///   or else before a space. Tokens next to a split point may differ from those of the unsplit text, for example if the
///   tokenizer prepends a space to every text.
/// - All CPU cores encode in parallel: documents and pieces in batches of at most 8 MiB, or one longer document.
///
/// # Token files
/// The token file's name is a hash of the encoding, the options and the source: the source's path and, for each file,
/// its name, length, modification time, and whether it contains JSON lines. A change that keeps both the length and the
/// modification time of a file is not detected. An existing token file is read once to compare its hash, and is
/// rewritten if it is damaged.
///
/// Several processes may prepare the same source concurrently, because a token file is written under a temporary name
/// and then renamed. Killed processes leave files that end in `.tmp`. These, and token files of earlier versions of a
/// source, are never deleted automatically. You may delete any file in the folder that is not in use.
///
/// # Errors
/// - [`TokenError::PathNotFound`], [`TokenError::NotAFile`] or [`TokenError::Io`] if the source cannot be read.
/// - [`TokenError::NothingToRead`] if no document has text.
/// - [`TokenError::JsonInFolder`] if the source is a folder that contains only JSON files, Markdown files and files
///   without an extension. The JSON files are then a dataset and not text.
/// - [`TokenError::NotText`] if a file is compressed, or in the format of Parquet or Arrow.
/// - [`TokenError::Line`] if a line of a JSON-lines file is not a valid document.
/// - [`TokenError::Document`] if a document cannot be encoded: its text is not UTF-8, the chat template rejects it, no
///   message of a conversation has the role `assistant`, or a conversation or prompt is longer than 8 MiB.
/// - [`TokenError::UnknownToken`] if a special token of the encoding is not in its vocabulary.
/// - [`TokenError::Changed`] if a file of the source changes while it is tokenised.
/// - [`TokenError::OutOfRange`] if [`TokenOptions::end_of_document`] is larger than the size of the encoding's
///   vocabulary, or the vocabulary has no tokens or more than 2^32.
/// - [`TokenError::NoFolder`] if there is no default folder, or [`TokenError::Write`] if the folder cannot be written.
pub fn prepare(source: &Path, encoding: &dyn Encode, options: &TokenOptions) -> Result<TokenFile, TokenError> {
    let vocabulary = options.vocabulary(encoding)?;
    let folder = options.folder()?;
    let listed = Source::list(source)?;
    let key = cache_key(&listed, encoding, options);
    let path = folder.join(format!("{}.tokens", hex(&key)));
    match TokenFile::open(&path) {
        Ok(file) if file.key() == key && file.is_intact() => return Ok(file),
        Ok(_) => {}
        Err(TokenError::PathNotFound { .. } | TokenError::DanglingLink { .. } | TokenError::Damaged { .. }) => {}
        Err(other) => return Err(other),
    }
    let mut writer = TokenWriter::create(&path, vocabulary as u64)?;
    encode_documents(&listed, encoding, options, &mut writer)?;
    if writer.tokens() == 0 {
        return Err(TokenError::NothingToRead { path: source.to_path_buf() });
    }
    writer.finish(key, &path)?;
    TokenFile::open(&path)
}
