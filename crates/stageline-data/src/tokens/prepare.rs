//! Tokenises a source (the text files to tokenise) once, and finds its token file again later: [`prepare`].

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

/// Tokenises a source (a text file, a JSON-lines file or a folder of them) and returns its token file. If an earlier
/// call has tokenised the same source, and the source is unchanged, that call's token file is opened instead.
///
/// # Documents
/// - A file whose name ends in `.jsonl` or `.ndjson` contains one document per line, a JSON object. The document is the
///   string in the field [`TokenOptions::text_field`], a `prompt` and its `completion`, or the `messages` of a
///   conversation. A line has at most 256 MiB, and blank lines are skipped.
/// - Any other file is one document.
/// - A folder gives the documents of its files and subfolders, in the order of the files' names. If some of them are
///   JSON-lines files, only these are read ([`files_left_out`](crate::files_left_out) lists the others). Symbolic
///   links to folders, hidden entries (such as `.git`) and folders with a `CACHEDIR.TAG` (build outputs and caches) are
///   skipped.
///
/// A conversation becomes text by [`Encode::chat`], which adds all of its special tokens. Every other document has the
/// encoding's special tokens for its start and end ([`Encode::special_tokens`]), whatever its text ends with. Then
/// [`TokenOptions::end_of_document`] is appended, unless it is already the document's last token. The last token may be
/// a special token for the end, or come from the text. For example, a tokenizer with the special token `</s>` encodes a
/// text that ends with `</s>` as tokens that end with it.
///
/// All CPU cores encode documents and pieces of texts, at most 8 MiB at a time unless a single document is longer.
/// Empty documents are left out. Prompts with their completions and conversations have at most 8 MiB, and each is
/// encoded in one pass. A text of more than 512 KiB is encoded in pieces of at most this size. A piece ends after a
/// line feed if possible, or else before a blank. Next to a border between two pieces, a tokenizer may give other
/// tokens than for the uncut document, for example if it puts a blank before every text.
///
/// # Token files
/// The name of the token file is a hash of the encoding, the options and the source. For the source, the hash covers
/// its path, and for each file the name, the length, the modification time, and whether it contains JSON lines. Another
/// call with the same arguments opens that file and does not read the source, unless the source has changed. A change
/// that keeps both the length and the modification time of a file is not detected.
///
/// A token file that is found is read once, to compare the hash of its tokens and documents with the one in its header.
/// A damaged token file is written again.
///
/// A token file is written under a temporary name and then renamed, so several processes may prepare the same source at
/// once. Files that end in `.tmp` are left by processes that were killed. Nothing deletes these, or the token files of
/// earlier versions of a source. You may delete any file in the folder that is not in use.
///
/// # Errors
/// - [`TokenError::PathNotFound`], [`TokenError::NotAFile`] or [`TokenError::Io`] if the source cannot be read.
/// - [`TokenError::NothingToRead`] if no document has text.
/// - [`TokenError::NotText`] if a file is compressed, or in the format of Parquet or Arrow.
/// - [`TokenError::Line`] if a line of a JSON-lines file is no document.
/// - [`TokenError::Document`] if a document cannot be encoded: its text is not UTF-8, the chat template refuses it, or
///   no message of a conversation is the assistant's.
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
