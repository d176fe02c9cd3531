//! What can go wrong on the way from a path to a window, and the way out.

use std::io;
use std::path::{Path, PathBuf};

/// Why a corpus cannot be opened or sampled.
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
    /// The operating system refused a memory map.
    #[error(
        "cannot map {} into memory, with {maps} files of its side mapped before it; lower max_files, or raise the \
         limit on maps (vm.max_map_count on Linux)",
        path.display()
    )]
    Map {
        /// The file.
        path: PathBuf,
        /// How many files of the same side were mapped before it.
        maps: usize,
        /// What the operating system said.
        source: io::Error,
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
    fn a_refused_map_names_the_file_the_number_and_the_way_out() {
        let source = io::Error::other("out of maps");
        let message = CorpusError::Map { path: "some/file".into(), maps: 65_000, source }.to_string();
        for part in ["some/file", "65000 files", "lower max_files"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn an_io_error_names_the_path_and_keeps_its_cause() {
        let error = CorpusError::io(Path::new("some/file"))(io::Error::other("disk on fire"));
        assert!(error.to_string().contains("some/file"), "{error}");
        assert_eq!(error.source().unwrap().to_string(), "disk on fire");
    }
}
