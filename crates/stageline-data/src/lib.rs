//! Samples training windows of bytes or tokens for a language model from text files, in an order that a seed
//! determines.
//!
//! A [`Corpus`] (the text files of a training run) stays on disk. Opening it reads all of its bytes once, to compute a
//! fingerprint, and keeps none in memory. Later, the bytes of a window are read on request. If a file changes while the
//! corpus is open, the next read of that file returns an error that says how it changed. A window therefore never
//! contains text that was written later. A part of the corpus is held out for validation.
//!
//! A [`Sampler`] computes the start offsets of a training step's windows from a seed and the step number alone. A run
//! therefore resumes at any step without saved sampler state. The corpus's [fingerprint](Corpus::fingerprint), a hash,
//! shows whether the resumed run trains on the same text.
//!
//! ```
//! use std::path::Path;
//!
//! use stageline_data::{Corpus, CorpusOptions, Sampler};
//!
//! let options = CorpusOptions { extensions: Some(vec!["rs".into()]), ..CorpusOptions::default() };
//! let corpus = Corpus::open(Path::new("src"), &options)?;
//! let text = corpus.train();
//!
//! let window = 64 + 1; // 64 bytes of context, and one more: the target is the input shifted by one byte
//! let sampler = Sampler::new(text.len(), window, 7)?;
//! let mut batch = vec![0; 4 * window]; // shape [4, window], row-major
//! for (row, offset) in batch.chunks_exact_mut(window).zip(sampler.offsets(0, 4)) {
//!     text.read(offset, row)?;
//! }
//! # assert!(batch.iter().all(|&byte| byte != 0));
//! # Ok::<(), stageline_data::CorpusError>(())
//! ```
//!
//! # Tokens
//!
//! [`prepare`] tokenises a text file, a JSON-lines file or a folder of them once, and returns a memory-mapped
//! [`TokenFile`]. Later calls with the same arguments open the same token file, unless a text file has changed. A line
//! of a JSON-lines file contains a text, a prompt with its completion, or a conversation. [`TokenFile::is_target`]
//! tells which tokens are targets in the loss, and which are masked out. The trait [`Encode`] is the interface of an
//! encoding. [`Bytes`] is a byte-level encoding and needs no tokenizer. With the feature `tokenizers`, `Tokenizer`
//! implements [`Encode`] for the `tokenizer.json` of a published model. A [`Sampler`] chooses windows of tokens in the
//! same way as windows of bytes.
//!
//! ```
//! use std::path::Path;
//!
//! use stageline_data::{Bytes, Sampler, TokenOptions, prepare};
//!
//! # let temporary = tempfile::tempdir()?;
//! # let folder = temporary.path().to_path_buf();
//! let options = TokenOptions { folder: Some(folder), ..TokenOptions::default() };
//! let tokens = prepare(Path::new("src"), &Bytes, &options)?;
//! let (train, held_out) = tokens.split(0.1)?;
//! assert_eq!(train.end, held_out.start);
//!
//! let window = 64 + 1;
//! let mut row = vec![0; window];
//! for offset in Sampler::new(train.end, window, 7)?.offsets(0, 4) {
//!     tokens.read(offset, &mut row)?;
//! }
//! # assert!(row.iter().all(|&token| token < 256));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! A module imports only from the modules that are listed before it.
//!
//! - `shown`: paths and other strings, made safe to print in error messages. `hex`: hashes as hexadecimal strings.
//! - `walk`: finds the files of a folder and its subfolders.
//! - `file_change`: [`Change`], the kind of change to a file while the corpus was open. `error`: [`CorpusError`].
//! - `file_range`: a byte range of a file, read on request.
//! - `text`: [`Text`], file ranges joined to one stream of bytes.
//! - `corpus`: [`Corpus`] and [`CorpusOptions`]: splits the files at a path into a training text and a validation text.
//! - `key`: the key of a random number stream, computed from a seed and a purpose.
//! - `sampler`: [`Sampler`], which chooses the windows of a training step. The sampler knows only the length of a text.
//! - `epochs`: [`Epochs`], which chooses the samples of a training step so that each sample occurs once per epoch.
//! - `tokens`: [`prepare`], [`TokenFile`] and the encodings: tokenises the files at a path into a file of tokens.

mod corpus;
mod epochs;
mod error;
mod file_change;
mod file_range;
mod hex;
mod key;
mod sampler;
mod shown;
mod text;
mod tokens;
mod walk;

pub use corpus::{Corpus, CorpusOptions};
pub use epochs::Epochs;
pub use error::CorpusError;
pub use file_change::Change;
pub use sampler::Sampler;
pub use text::Text;
#[cfg(feature = "tokenizers")]
pub use tokens::Tokenizer;
pub use tokens::{
    Bytes, Chat, ChatVariables, Continued, Encode, Message, SpecialTokens, TokenError, TokenFile, TokenOptions,
    files_left_out, open_file, prepare,
};
