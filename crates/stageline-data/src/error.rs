//! What can go wrong on the way from a path to a window, and the way out.

use std::io;
use std::path::{Path, PathBuf};

use crate::change::Change;

/// Why a corpus cannot be opened, sampled or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// The path names nothing.
    #[error("{} does not exist; give the path of a text file, or of a folder of them", path.display())]
    PathNotFound {
        /// What was asked for.
        path: PathBuf,
    },
    /// There is no byte to read: no file, no file of these extensions, or empty files only.
    #[error(
        "nothing to read at {}: found no non-empty {}; give another path{}",
        path.display(),
        wanted(extensions.as_deref()),
        if extensions.is_some() { " or other extensions (None takes every file)" } else { "" }
    )]
    NothingToRead {
        /// What was asked for.
        path: PathBuf,
        /// The extensions that were asked for; `None` for any file.
        extensions: Option<Vec<String>>,
    },
    /// A text holds less than one window.
    #[error(
        "the text has {text_len} bytes, but a window takes {window}; shorten the window, or read more text (more \
         files, a larger max_bytes or, for validation, a larger validation_fraction)"
    )]
    TextTooShort {
        /// Length of the text in bytes.
        text_len: u64,
        /// Length of a window in bytes.
        window: usize,
    },
    /// An option is outside its range.
    #[error("{name} is {value}; it must be {allowed}")]
    OutOfRange {
        /// Which option.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// A file is no longer what it was when the corpus was opened.
    #[error(
        "{} had {had} bytes when the corpus was opened, and {now}; put it back as it was, with its modification time, \
         or open the corpus again; train on a copy if it is still written to",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// How many bytes it had.
        had: u64,
        /// What has become of it.
        now: Change,
    },
    /// A file or folder cannot be read.
    #[error("cannot read {}; make it readable, or move it out of the corpus", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl CorpusError {
    /// For `map_err`: an I/O error at `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { path: path.to_path_buf(), source }
    }
}

/// The kind of file that was looked for, such as `file with the extension rs or md`.
fn wanted(extensions: Option<&[String]>) -> String {
    match extensions {
        None => "file".into(),
        Some([]) => "file with an extension of the empty list".into(),
        Some(some) => format!("file with the extension {}", some.join(" or ")),
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
    fn an_io_error_names_the_path_and_keeps_its_cause() {
        let error = CorpusError::io(Path::new("some/file"))(io::Error::other("disk on fire"));
        let expected = "cannot read some/file; make it readable, or move it out of the corpus";
        assert_eq!(
            (error.to_string().as_str(), error.source().unwrap().to_string().as_str()),
            (expected, "disk on fire")
        );
    }

    #[test]
    fn what_cannot_be_sampled_is_said_with_its_numbers() {
        assert_eq!(
            CorpusError::TextTooShort { text_len: 64, window: 65 }.to_string(),
            "the text has 64 bytes, but a window takes 65; shorten the window, or read more text (more files, a larger \
             max_bytes or, for validation, a larger validation_fraction)"
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
