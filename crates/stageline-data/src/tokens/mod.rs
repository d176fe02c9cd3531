//! Token files: a text is tokenised once, and training runs read its tokens from a memory-mapped file.
//!
//! - Input: the path of a text file, of a JSON-lines file or of a folder of them; an [`Encode`]; [`TokenOptions`].
//! - Output: a [`TokenFile`], which [`prepare`] makes or finds in its folder.
//! - A token file is complete or absent. [`prepare`] writes a damaged one again. [`TokenFile::open`] refuses a damaged
//!   one, but does not compare the hash of its tokens. Nothing in a source or in a token file causes a panic. This
//!   folder must not choose the windows of a training step: `sampler` does.
//!
//! The data passes through the modules in this order:
//!
//! - `source`: lists the files of a path, and [`files_left_out`]. `cache_key`: the hash that finds an earlier token
//!   file again.
//! - `json_lines`: reads documents from the lines of a file. `json_document`: takes the document from a line.
//!   `json_object`: the fields of an object in order. `other_formats`: recognises data in formats that are not read.
//!   `pieces`: cuts a long text, so that memory is bounded.
//! - `message`: [`Message`] and [`Chat`], a conversation as text. `chat_variables`: [`ChatVariables`], what a chat
//!   template reads besides the messages. `answers`: finds the answers in the text.
//! - `encode`: [`Encode`] and [`SpecialTokens`]. `bytes`: [`Bytes`]. The feature `tokenizers` adds five modules.
//!   `tokenizer`: `Tokenizer`. `chat_template`: the text of a conversation. `jinja`: Jinja as in Python. `date`: dates
//!   in templates. `panics`: panics of libraries as errors.
//! - `documents`: encodes all documents of a source, in batches. `encoder`: encodes one of them, and adds the special
//!   tokens of the encoding. `parallel`: shares a batch out among threads.
//! - `write`: writes a token file under a temporary name, and appends the end-of-document token to each document that
//!   does not end with it, except conversations. `format`: the header and the layout of a token file.
//! - `prepare`: [`prepare`], the only caller of all of the above. `options`: [`TokenOptions`].
//! - `file`: [`TokenFile`], the reader. `split`: its tokens for training, and its tokens that are held out.
//! - `detokenize`: [`Continued`], text from tokens that come one by one.
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
mod message;
mod options;
mod other_formats;
#[cfg(feature = "tokenizers")]
mod panics;
mod parallel;
mod pieces;
mod prepare;
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
