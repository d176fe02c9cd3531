//! Token files: `prepare` tokenises a text once, and training runs read its tokens from a memory-mapped file.
//!
//! - Input: the path of a text file, of a JSON-lines file or of a folder of them; an [`Encode`]; [`TokenOptions`].
//! - Output: a [`TokenFile`], which [`prepare`] creates, or finds in its folder from an earlier call.
//! - A token file is complete or absent. [`prepare`] rewrites a damaged token file. [`TokenFile::open`] returns an
//!   error for a damaged one, but does not compare the hash of its tokens. No content of a source or of a token file
//!   causes a panic. The code here must not choose the windows of a training step: `sampler` does.
//!
//! The data passes through the modules in this order:
//!
//! - `source`: lists the files at a path, and [`files_left_out`]. `cache_key`: the hash that identifies an earlier
//!   token file of the same source.
//! - `json_lines`: reads documents from the lines of a file. `json_document`: parses the document in a line.
//!   `json_object`: the fields of a JSON object in order. `other_formats`: recognises data in unsupported formats.
//!   `pieces`: splits a long text, so that memory use is bounded.
//! - `message`: [`Message`] and [`Chat`], a conversation as text. `chat_variables`: [`ChatVariables`], the inputs of a
//!   chat template besides the messages. `answers`: locates the answers in the text.
//! - `encode`: [`Encode`] and [`SpecialTokens`]. `bytes`: [`Bytes`]. The feature `tokenizers` adds seven modules.
//!   `tokenizer`: `Tokenizer`. `chat_template`: renders a conversation as text. `jinja`: Jinja as in Python.
//!   `python`: values as Python writes them.
//!   `literals`: Python's string literals in templates. `date`: dates in templates. `panics`: converts panics of
//!   libraries to errors.
//! - `documents`: encodes all documents of a source, in batches. `encoder`: encodes one document, and adds the
//!   encoding's special tokens. `parallel`: distributes a batch among threads.
//! - `write`: writes a token file under a temporary name, and appends the end-of-document token to each document that
//!   does not end with it, except conversations. `format`: the header and the layout of a token file.
//! - `prepare`: [`prepare`], the only caller of all of the above. `options`: [`TokenOptions`].
//! - `file`: [`TokenFile`], the reader. `split`: splits its tokens into training tokens and held-out tokens.
//! - `detokenize`: [`Continued`], which decodes tokens that arrive one by one.
//! - `regular_file`: [`open_file`], which opens no pipe and no device.
//! - `error`: [`TokenError`].

mod answers;
mod bytes;
mod cache_key;
#[cfg(feature = "tokenizers")]
mod chat_template;
mod chat_variables;
#[cfg(feature = "tokenizers")]
mod date;
mod detokenize;
mod documents;
mod encode;
mod encoder;
mod error;
mod file;
mod format;
#[cfg(feature = "tokenizers")]
mod jinja;
mod json_document;
mod json_lines;
mod json_object;
#[cfg(feature = "tokenizers")]
mod literals;
mod message;
mod options;
mod other_formats;
#[cfg(feature = "tokenizers")]
mod panics;
mod parallel;
mod pieces;
mod prepare;
#[cfg(feature = "tokenizers")]
mod python;
mod regular_file;
mod source;
mod split;
#[cfg(feature = "tokenizers")]
mod tokenizer;
mod write;

pub use self::bytes::Bytes;
pub use self::chat_variables::ChatVariables;
pub use self::detokenize::Continued;
pub use self::encode::{Encode, SpecialTokens};
pub use self::error::TokenError;
pub use self::file::TokenFile;
pub use self::message::{Chat, Message};
pub use self::options::TokenOptions;
pub use self::prepare::prepare;
pub use self::regular_file::open_file;
pub use self::source::files_left_out;
#[cfg(feature = "tokenizers")]
pub use self::tokenizer::Tokenizer;
