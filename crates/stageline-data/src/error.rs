//! The errors of opening, sampling and reading a corpus: [`CorpusError`]. Every error message ends with the fix.
//!
//! Input: the values of a failure, such as a path and an error of the operating system. Output: an error with its
//! message. The code here must not access the disk: a message contains only what the error's fields say.

use std::io;
use std::path::{Path, PathBuf};

use crate::file_change::Change;
use crate::shown;
use crate::walk::Unreadable;

/// Why a corpus (the text files of a training run) cannot be opened, sampled or read.
///
/// Messages escape invisible characters of paths, and cut long ones.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// Nothing exists at the path that was given for the corpus.
    #[error("{} does not exist; give the path of a text file, or of a folder of them", shown::path(path))]
    PathNotFound {
        /// The path that the caller gave for the corpus. Nothing exists there.
        path: PathBuf,
    },
    /// The corpus contains no byte to read: it has no files, no files with the requested extensions, or only empty
    /// ones.
    #[error(
        "nothing to read at {}: found no non-empty {}; give another path{}",
        shown::path(path),
        wanted(extensions.as_deref()),
        if extensions.is_some() { " or other extensions (None takes every file)" } else { "" }
    )]
    NothingToRead {
        /// The path that the caller gave for the corpus. No file there contains a byte to read.
        path: PathBuf,
        /// The file extensions that the caller asked for, such as `rs`; `None` for any file.
        extensions: Option<Vec<String>>,
    },
    /// The text is shorter than one window, the number of bytes or tokens in a training example.
    #[error(
        "the text has the length {text_len}, but a window takes {window} (in bytes, or in tokens for a token file); \
         shorten the window, or read more text (more files, a larger max_bytes of a corpus or, for validation, a \
         larger validation_fraction or held_out)"
    )]
    TextTooShort {
        /// The length of the text that is too short: in bytes, or in tokens if the sampler chooses windows of tokens.
        text_len: u64,
        /// The length of a window, which is one training example: in bytes, or in tokens if the sampler chooses windows
        /// of tokens.
        window: usize,
    },
    /// An option of the corpus or of a sampler is outside its range.
    #[error("{name} is {value}; it must be {allowed}")]
    OutOfRange {
        /// The name of the option that is out of range: `max_bytes`, `max_files` or `validation_fraction` of the
        /// corpus, `window` of a [`Sampler`](crate::Sampler), or `samples` of [`Epochs`](crate::Epochs).
        name: &'static str,
        /// The value, as text, of the option of the corpus or of the sampler that is out of range.
        value: String,
        /// The range of valid values, in words, for the option of the corpus or of the sampler that is out of range.
        allowed: &'static str,
    },
    /// A file of the corpus has changed since the corpus was opened.
    #[error(
        "{} had {had} bytes when the corpus was opened, and {now}; put it back as it was, with its modification time, \
         or open the corpus again; train on a copy if it is still written to",
        shown::path(path)
    )]
    Changed {
        /// The path of the corpus's file that changed.
        path: PathBuf,
        /// The length in bytes that the changed file had when the corpus was opened.
        had: u64,
        /// The kind of change of the file since the corpus was opened, such as a new length.
        now: Change,
    },
    /// A file or folder of the corpus cannot be read.
    #[error("cannot read {}; make it readable, or move it out of the corpus", shown::path(path))]
    Io {
        /// The path of the file or folder of the corpus that cannot be read.
        path: PathBuf,
        /// The error of the operating system when a file or folder of the corpus was read.
        source: io::Error,
    },
}

impl CorpusError {
    /// Returns a closure for `map_err` that converts an operating system's error to a [`CorpusError::Io`] for the file
    /// or folder at `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { path: path.to_path_buf(), source }
    }
}

impl From<Unreadable> for CorpusError {
    fn from(Unreadable { path, source }: Unreadable) -> Self {
        Self::Io { path, source }
    }
}

/// Returns the words of an error message for the kind of file that was not found, such as "file with the extension rs
/// or md". `extensions` lists the file extensions that the caller asked for.
fn wanted(extensions: Option<&[String]>) -> String {
    match extensions {
        None => "file".into(),
        Some([]) => "file with an extension of the empty list".into(),
        Some(some) => format!("file with the extension {}", shown::text(&some.join(" or "))),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn nothing_to_read_names_the_path_and_the_extensions() {
        let asked = |extensions: Option<&[&str]>| {
            let extensions = extensions.map(|some| some.iter().map(ToString::to_string).collect());
            CorpusError::NothingToRead { path: "some/folder".into(), extensions }.to_string()
        };
        assert_eq!(
            asked(Some(&["rs", "md"])),
            "nothing to read at some/folder: found no non-empty file with the extension rs or md; give another path \
             or other extensions (None takes every file)"
        );
        assert_eq!(asked(None), "nothing to read at some/folder: found no non-empty file; give another path");
        assert!(asked(Some(&[])).contains("the empty list"));
    }

    #[test]
    fn names_of_files_are_printable_and_bounded() {
        let path: PathBuf = format!("\u{1b}[2J\n\u{202e}\u{3164}{}", "a".repeat(10_000)).into();
        let had = 10;
        for error in [
            CorpusError::PathNotFound { path: path.clone() },
            CorpusError::NothingToRead { path: path.clone(), extensions: Some(vec!["\u{1b}".repeat(1_000)]) },
            CorpusError::Changed { path: path.clone(), had, now: Change::Gone },
            CorpusError::io(&path)(io::Error::other("disk on fire")),
        ] {
            let message = error.to_string();
            let is_hidden = |char: char| char.is_control() || ['\u{202e}', '\u{3164}'].contains(&char);
            assert!(message.len() < 1_100 && !message.contains(is_hidden), "{message}");
            assert!(message.contains(r"\u{1b}[2J\n\u{202e}\u{3164}aaa"), "{message}");
        }
    }

    #[test]
    fn an_io_error_names_the_path_and_keeps_its_cause() {
        let error = CorpusError::io(Path::new("some/file"))(io::Error::other("disk on fire"));
        let expected = "cannot read some/file; make it readable, or move it out of the corpus";
        assert_eq!(
            (error.to_string().as_str(), error.source().unwrap().to_string().as_str()),
            (expected, "disk on fire")
        );
    }

    #[test]
    fn values_out_of_range_are_reported_with_their_limits() {
        assert_eq!(
            CorpusError::TextTooShort { text_len: 64, window: 65 }.to_string(),
            "the text has the length 64, but a window takes 65 (in bytes, or in tokens for a token file); shorten the \
             window, or read more text (more files, a larger max_bytes of a corpus or, for validation, a larger \
             validation_fraction or held_out)"
        );
        assert_eq!(
            CorpusError::OutOfRange { name: "max_files", value: "0".into(), allowed: "at least 1" }.to_string(),
            "max_files is 0; it must be at least 1"
        );
        assert_eq!(
            CorpusError::PathNotFound { path: "some/folder".into() }.to_string(),
            "some/folder does not exist; give the path of a text file, or of a folder of them"
        );
    }
}
