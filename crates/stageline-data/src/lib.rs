//! Text on disk to training windows for a byte-level language model.
//!
//! A [`Corpus`] is read, not loaded: opening a folder costs a walk over its names, and bytes come off the disk when a
//! window is read. A file that changes in between is an error that says how, and no window of something else. Part of
//! the corpus is held out for validation. A [`Sampler`] says where the windows of a training step start, as a pure
//! function of a seed and the step, so a run resumes at any step with nothing saved but the
//! [fingerprint](Corpus::fingerprint) of its text.
//!
//! # Layout
//!
//! In the order in which data flows:
//!
//! - `options`: what of a path is read.
//! - `walk`: a folder becomes the paths of its files.
//! - `hash`: a seed and a path become two random draws, a rank and a share.
//! - `take`: files in order of rank, up to the caps on files and bytes.
//! - `split`: files by their share, or the bytes of a single file, become training and validation.
//! - `fingerprint`: what both are made of, as a hash.
//! - `extent`: a stretch of a file, read when it is asked for; `change`: what has become of the file by then.
//! - [`text`]: one side, as one stream of bytes over extents; counts and entropy.
//! - [`corpus`]: all of the above behind [`Corpus::open`].
//! - `key`: a seed and the tag of a purpose become the key of a random stream.
//! - [`sampler`]: where the windows of a step start.
//! - [`error`](mod@error): what can go wrong, and the way out.
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
//! let window = 64 + 1; // 64 bytes of context, and one more: the target is the input moved by one byte
//! let sampler = Sampler::new(text.len(), window, 7)?;
//! let mut batch = vec![0; 4 * window]; // shape [4, window], row by row
//! for (row, offset) in batch.chunks_exact_mut(window).zip(sampler.offsets(0, 4)) {
//!     text.read(offset, row)?;
//! }
//! # assert!(batch.iter().all(|&byte| byte != 0));
//! # Ok::<(), stageline_data::CorpusError>(())
//! ```

pub mod corpus;
pub mod error;
pub mod sampler;
pub mod text;

mod change;
mod extent;
mod fingerprint;
mod hash;
mod key;
mod options;
mod split;
mod take;
mod walk;

pub use change::Change;
pub use corpus::Corpus;
pub use error::CorpusError;
pub use options::CorpusOptions;
pub use sampler::Sampler;
pub use text::Text;
