//! The errors of opening, sampling and reading a corpus: [`CorpusError`]. Every error message ends with the fix.
//!
//! Input: the values of a failure, such as a path and the operating system's error. Output: an error with its message.
//! The code here must not access the disk: a message contains only what the error's fields say.

use std::io;
use std::path::{Path, PathBuf};

use crate::file_change::Change;
use crate::shown;
use crate::walk::Unreadable;

/// The error of opening, sampling or reading a corpus (the text files of a training run).
///
/// Messages escape invisible characters in paths, and truncate long paths.
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
    /// ones. Give another path or other extensions.
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
    /// The text is shorter than one window (the bytes or tokens of one training sample). Shorten the window, or read
    /// more text.
    #[error(
        "the text has the length {text_len}, but a window takes {window} (in bytes, or in tokens for a token file); \
         shorten the window, or read more text (more files, a larger max_bytes of a corpus or, for validation, a \
         larger validation_fraction or held_out)"
    )]
    TextTooShort {
        /// Length of the text, which is shorter than one window; in bytes, or in tokens for a token file.
        text_len: u64,
        /// Length of a window (one training sample), in bytes, or in tokens for a token file.
        window: usize,
    },
    /// An option of a corpus or sampler is outside its valid range.
    #[error("{name} is {value}; it must be {allowed}")]
    OutOfRange {
        /// The name of the option that is out of range: `max_bytes`, `max_files` or `validation_fraction` of the
        /// corpus, `window` of a [`Sampler`](crate::Sampler), or `samples` of [`Epochs`](crate::Epochs).
        name: &'static str,
        /// The out-of-range value of the corpus option or sampler option, as a string.
        value: String,
        /// The valid range of the out-of-range option in words, such as "at least 1".
        allowed: &'static str,
    },
    /// A file of the corpus has changed on disk since the corpus was opened. Restore the file, or open the corpus
    /// again.
    #[error(
        "{} had {had} bytes when the corpus was opened, and {now}; put it back as it was, with its modification time, \
         or open the corpus again; train on a copy if it is still written to",
        shown::path(path)
    )]
    Changed {
        /// The path of the corpus file that changed.
        path: PathBuf,
        /// The length in bytes that the changed file had when the corpus was opened.
        had: u64,
        /// The kind of change to the file since the corpus was opened, such as a new length.
        now: Change,
    },
    /// The operating system cannot read a file or folder of the corpus. Make it readable, or move it out of the corpus.
    #[error("cannot read {}; make it readable, or move it out of the corpus", shown::path(path))]
    Io {
        /// The path of the corpus file or folder that cannot be read.
        path: PathBuf,
        /// The operating system's error from reading a corpus file or folder.
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

/// Describes the files that were looked for and not found, for an error message, such as "file with the extension rs or
/// md". `extensions` lists the file extensions that the caller asked for; `None` means any file.
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
