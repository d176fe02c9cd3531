//! The errors of making and reading token files: [`TokenError`]. Every error message ends with the fix.

use std::io;
use std::path::{Path, PathBuf};

use crate::file_change::Change;
use crate::shown;
use crate::walk::Unreadable;

/// The error of tokenising a text, or of reading a token file or a tokenizer.
///
/// Messages escape invisible characters in paths and other strings, and truncate long ones.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Nothing exists at the path of a source (the text files to tokenise), of a token file or of a tokenizer. Give the
    /// path of an existing file or folder.
    #[error("{} does not exist; give the path of a file or folder that does", shown::path(path))]
    PathNotFound {
        /// The path of the source, token file or tokenizer that does not exist.
        path: PathBuf,
    },
    /// The path of a source (the text files to tokenise), token file or tokenizer is a symbolic link whose target does
    /// not exist. Restore the target, or remove the link.
    #[error("{} is a link to a file that does not exist; restore that file, or remove the link", shown::path(path))]
    DanglingLink {
        /// The path of a source, token file or tokenizer that is a symbolic link to a missing target.
        path: PathBuf,
    },
    /// Something other than a regular file, such as a pipe, is at the path of a source (the text files to tokenise),
    /// token file or tokenizer. Write its contents to a file, and give the path of that file.
    #[error("{} is no regular file; write its contents to a file, and give the path of that", shown::path(path))]
    NotAFile {
        /// The path of the source, token file or tokenizer that is not a regular file.
        path: PathBuf,
    },
    /// A file that is read into memory as a whole, such as a tokenizer, exceeds its length limit. Give another file.
    #[error("{} has {found} bytes, but may have at most {most}; give another file", shown::path(path))]
    TooLong {
        /// The path of the file, such as a tokenizer, that is too long to be read as a whole.
        path: PathBuf,
        /// The length in bytes of the file, such as a tokenizer, that is too long to be read as a whole.
        found: u64,
        /// The maximum length in bytes of a file that is read as a whole, such as a tokenizer.
        most: u64,
    },
    /// Nothing could be tokenised: the source (the text files to tokenise) contains no file, or all of its documents
    /// are empty.
    #[error("nothing to tokenise at {}: found no document with text; give another path", shown::path(path))]
    NothingToRead {
        /// The path that the caller gave for the text files to tokenise. No file there contains text.
        path: PathBuf,
    },
    /// The operating system cannot read a file or folder of text to tokenise, a token file or a tokenizer. Make it
    /// readable, or give another path.
    #[error("cannot read {}; make it readable, or give another path", shown::path(path))]
    Io {
        /// Path of the unreadable file or folder: text to tokenise, a token file or a tokenizer.
        path: PathBuf,
        /// The operating system's error from reading the text, token file or tokenizer.
        source: io::Error,
    },
    /// The folder to tokenise contains only JSON files, Markdown files and files without an extension, so its data
    /// would be trained on as plain text. Rename a JSON-lines file to `.jsonl`, or give text files.
    #[error(
        "{} is JSON, and would be trained on as text; rename it to .jsonl if each line is an object, or give text files",
        shown::path(path)
    )]
    JsonInFolder {
        /// The path of the first JSON file in the folder to tokenise.
        path: PathBuf,
    },
    /// The operating system cannot write a token file. Free disk space, or choose another folder for token files.
    #[error(
        "cannot write {}; free space there, or set XDG_CACHE_HOME to a folder for token files that can be written",
        shown::path(path)
    )]
    Write {
        /// The path of the token file, or of its folder, that cannot be written.
        path: PathBuf,
        /// The operating system's error from writing a token file.
        source: io::Error,
    },
    /// A file of the source (the text files to tokenise) changed while it was being tokenised. Tokenise again when no
    /// program writes to the file.
    #[error(
        "{} had {had} bytes when its tokenisation began, and {now}; start again when it is no longer written to",
        shown::path(path)
    )]
    Changed {
        /// The path of the text file that changed while it was being tokenised.
        path: PathBuf,
        /// The length in bytes that the changed file had when the files to tokenise were listed.
        had: u64,
        /// The kind of change to the file since the files to tokenise were listed, such as a new length.
        now: Change,
    },
    /// A file to tokenise contains something other than plain text, such as compressed data.
    #[error("{} is {format} and no text; {remedy}, or leave it out", shown::path(path))]
    NotText {
        /// The path of the file that does not contain plain text.
        path: PathBuf,
        /// The format of the file in words, such as `a gzip file`.
        format: &'static str,
        /// Instruction for converting the file to text, such as `decompress it by gunzip`.
        remedy: &'static str,
    },
    /// A text to encode is not valid UTF-8, but the encoding needs UTF-8. Convert the text to UTF-8, or train on bytes.
    #[error("byte {offset} of the text is not UTF-8; convert the text to UTF-8, or train on bytes")]
    NotUtf8 {
        /// The offset in bytes of the first byte that is not valid UTF-8. It is counted from the start of the text to
        /// encode, or from the start of the document if a [`TokenError::Document`] contains this error.
        offset: u64,
    },
    /// A document cannot be encoded as tokens. `source` is the error that says why.
    #[error("cannot tokenise {}{}; correct it, or leave it out", of_line(*line), shown::path(path))]
    Document {
        /// The path of the file with the document that cannot be encoded.
        path: PathBuf,
        /// The line number of the document in its JSON-lines file, counted from 1; `None` if the whole file is one
        /// document.
        line: Option<u64>,
        /// The reason why the document cannot be encoded as tokens.
        source: Box<TokenError>,
    },
    /// A line of a JSON-lines file is not a valid document: it is longer than 256 MiB, is not a JSON object, or its
    /// fields for a text, a prompt with its completion, or a conversation are missing or have the wrong type.
    #[error("line {line} of {} {fault}", shown::path(path))]
    Line {
        /// The path of the JSON-lines file with the line that does not contain a valid document.
        path: PathBuf,
        /// The number of the invalid line in a JSON-lines file of documents, counted from 1.
        line: u64,
        /// The problem with a line of a JSON-lines file, and its fix, as a message that is safe to print.
        fault: String,
    },
    /// The tokenizer library failed to encode a text or to decode tokens.
    #[error("the tokenizer failed: {}; check the text and the tokenizer", shown::text(message))]
    Encoding {
        /// The error message of the tokenizer library from encoding a text or decoding tokens.
        message: String,
    },
    /// A file is not a `tokenizer.json` that the tokenizer library can load.
    #[error("{} is no tokenizer: {}; give a tokenizer.json of Hugging Face", shown::path(path), shown::text(message))]
    Tokenizer {
        /// The path of the file that was to be loaded as a `tokenizer.json`, but is not a valid one.
        path: PathBuf,
        /// The reason why the file cannot be used as a tokenizer, such as the parser's error message.
        message: String,
    },
    /// A model folder contains a tokenizer only in a format that this crate does not read, such as `tokenizer.model`,
    /// and no `tokenizer.json`. To write a `tokenizer.json`, call `save_pretrained` on transformers' `AutoTokenizer`.
    #[error(
        "{} belongs to a tokenizer in a form that is not read; write a tokenizer.json beside it, by transformers' \
         AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER), or move the file away to read bytes",
        shown::path(path)
    )]
    OtherForm {
        /// The path of the tokenizer's file in a format that this crate does not read, such as `tokenizer.model`.
        path: PathBuf,
    },
    /// A conversation cannot be rendered as text, because the encoding has no chat template. Put a
    /// `chat_template.jinja` beside the `tokenizer.json`, or write the documents as plain strings.
    #[error(
        "the messages need a chat template, and the tokenizer has none; give a chat_template.jinja beside its \
         tokenizer.json, or write `text`, or `prompt` and `completion`, as strings"
    )]
    NoChatTemplate,
    /// A chat template is malformed, or it rejects the messages of a conversation.
    #[error(
        "the chat template of {} fails: {}; correct the template, or the messages",
        shown::path(path),
        shown::text(message)
    )]
    Template {
        /// The path of the file with the chat template.
        path: PathBuf,
        /// The reason why the template fails: the template library's error message, or the template's own message that
        /// rejects the conversation.
        message: String,
    },
    /// An answer cannot be located in the rendered conversation, because the chat template renders it differently when
    /// more messages follow. Mark the answers in the template by `{% generation %}`, or write each answer as a
    /// `completion` on a line of its own.
    #[error(
        "the chat template writes an answer in another way when messages follow it, so its place is not known; mark the \
         answers in the template by `generation`, or give each answer a line of its own, with the messages before it as \
         `prompt` and the answer as `completion`"
    )]
    ChangedByLater,
    /// A conversation has no target in the loss: no message has the role `assistant`, and the chat template marks no
    /// answer by `{% generation %}`.
    #[error(
        "the conversation has no message with the role `assistant`, but the roles {}; rename the role of the answers, \
         or leave the conversation out",
        shown::text(roles)
    )]
    NoAnswer {
        /// The distinct roles of the conversation's messages, in the order of the messages, separated by commas.
        roles: String,
    },
    /// A conversation, or a prompt with its completion, is longer than 8 MiB, too long to be tokenised in one pass.
    /// Shorten it.
    #[error("its text has {found} bytes, but that of a prompt or a conversation may have at most {most}; shorten it")]
    LongDocument {
        /// The length in bytes of the text of a conversation, or of a prompt with its completion, that exceeds the
        /// limit `most`.
        found: usize,
        /// The maximum length in bytes of the text of a conversation, or of a prompt with its completion.
        most: usize,
    },
    /// A token id is not in the vocabulary of its encoding.
    #[error(
        "the token id {token} is not in the vocabulary, which has ids below {vocabulary}; use the tokenizer that made these tokens"
    )]
    UnknownToken {
        /// The token id that is not in the vocabulary, because it is not below the vocabulary size.
        token: u32,
        /// The size of the encoding's vocabulary. Valid token ids are below this size.
        vocabulary: usize,
    },
    /// A file cannot be used as a token file: it is another kind of file, is damaged, or was written by an incompatible
    /// release.
    #[error("{} is no usable token file: {damage}; delete it, and prepare the tokens again", shown::path(path))]
    Damaged {
        /// The path of the file that was to be used as a token file, but is damaged or of another kind.
        path: PathBuf,
        /// The first problem that was found in a damaged token file, as a message that is safe to print.
        damage: String,
    },
    /// A token file contains too few tokens to hold some of them out for validation.
    #[error("there are {tokens} tokens, too few to train on some and to hold out others; give a longer text")]
    TooFewTokens {
        /// The number of tokens in the token file. It is too small: 2 or more are needed.
        tokens: u64,
    },
    /// A number is outside its valid range: the end-of-document token, the vocabulary size, or the fraction of tokens
    /// to hold out for validation.
    #[error("{name} is {value}; it must be {allowed}")]
    OutOfRange {
        /// The name of the number that is out of range: `end_of_document`, `the size of the vocabulary` or `held_out`.
        name: &'static str,
        /// The out-of-range value of the number that `name` specifies, as a string.
        value: String,
        /// The valid range, in words, of the number that `name` specifies.
        allowed: String,
    },
    /// There is no default folder for token files, because neither `XDG_CACHE_HOME` nor a home folder is set. Set one
    /// of them, or the field `folder` of [`TokenOptions`](crate::TokenOptions).
    #[error(
        "there is no folder for token files, because neither XDG_CACHE_HOME nor HOME is set; set one of them (in code, `TokenOptions::folder`)"
    )]
    NoFolder,
}

impl TokenError {
    /// Returns a closure for `map_err` that converts an operating system's error at `path` to a [`TokenError::Io`], or
    /// to a [`TokenError::PathNotFound`] if nothing exists there.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| match source.kind() {
            io::ErrorKind::NotFound => Self::PathNotFound { path: path.to_path_buf() },
            _ => Self::Io { path: path.to_path_buf(), source },
        }
    }

    /// Converts a [`TokenError::PathNotFound`] to a [`TokenError::DanglingLink`] if a symbolic link is at the path.
    /// Other errors are unchanged.
    pub(crate) fn or_dangling_link(self) -> Self {
        match self {
            Self::PathNotFound { path } if path.is_symlink() => Self::DanglingLink { path },
            other => other,
        }
    }

    /// Returns a closure for `map_err` that converts an operating system's error to a [`TokenError::Write`] for the
    /// file or folder at `path`.
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Write { path: path.to_path_buf(), source }
    }

    /// Converts an error in one piece of a document to an error in the whole document: adds the piece's byte offset
    /// `start` to the offset of a [`TokenError::NotUtf8`]. Other errors are unchanged. A piece is a part that is
    /// encoded on its own.
    pub(crate) fn in_piece(self, start: u64) -> Self {
        match self {
            Self::NotUtf8 { offset } => Self::NotUtf8 { offset: start + offset },
            other => other,
        }
    }
}

impl From<Unreadable> for TokenError {
    fn from(Unreadable { path, source }: Unreadable) -> Self {
        Self::Io { path, source }
    }
}

fn of_line(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!("line {line} of "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_values_and_the_fix() {
        let source = Box::new(TokenError::NotUtf8 { offset: 7 }.in_piece(10));
        let inner = source.to_string();
        assert_eq!(inner, "byte 17 of the text is not UTF-8; convert the text to UTF-8, or train on bytes");
        let document = |line| {
            let source = Box::new(TokenError::NotUtf8 { offset: 7 });
            TokenError::Document { path: "a\nb".into(), line, source }.to_string()
        };
        assert_eq!(document(None), "cannot tokenise a\\nb; correct it, or leave it out");
        assert_eq!(document(Some(3)), "cannot tokenise line 3 of a\\nb; correct it, or leave it out");
        let unknown = TokenError::UnknownToken { token: 300, vocabulary: 256 }.to_string();
        assert!(unknown.contains("300") && unknown.contains("256"), "{unknown}");
        let few = TokenError::TooFewTokens { tokens: 1 }.to_string();
        assert!(few.starts_with("there are 1 tokens, too few"), "{few}");
    }

    #[test]
    fn messages_of_other_programs_are_bounded() {
        let message = TokenError::Encoding { message: "\n".repeat(10_000) }.to_string();
        assert!(message.len() < 400 && !message.contains('\n'), "{message}");
    }
}
