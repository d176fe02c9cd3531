//! Detects whether a file of a corpus has changed, from its metadata alone: [`Change`].
//!
//! Input: the metadata of a file at two times. Output: the kind of change, or none. The code here must not open or read
//! a file.

use std::fmt;
use std::fs::Metadata;
use std::time::SystemTime;

/// The kind of change of a text file while a corpus was open, or while the file was tokenised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A change of a text file: it has another length. The value is the new length in bytes.
    Length(u64),
    /// A change of a text file: it was written to, but has its old length. Either its modification time differs, or it
    /// was shorter for a moment while it was read.
    Written,
    /// A change of a text file: something other than a regular file, such as a folder, has taken its place.
    NoFile,
    /// A change of a text file: it was deleted or moved away.
    Gone,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => write!(f, "has {bytes} now"),
            Self::Written => f.write_str("was written to since"),
            Self::NoFile => f.write_str("is no file now"),
            Self::Gone => f.write_str("is gone now"),
        }
    }
}

/// The length and modification time of a text file, which reveal a later change of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) length: u64,
    /// The modification time of a text file; `None` if the file system keeps none.
    pub(crate) modified: Option<SystemTime>,
}

impl Stamp {
    pub(crate) fn new(metadata: &Metadata) -> Self {
        Self { length: metadata.len(), modified: metadata.modified().ok() }
    }

    /// Compares the current `metadata` of a text file with its recorded length and modification time. Returns the kind
    /// of change, or `None` if the file has not changed.
    pub(crate) fn change(&self, metadata: &Metadata) -> Option<Change> {
        let now = Self::new(metadata);
        if !metadata.is_file() {
            Some(Change::NoFile)
        } else if now.length != self.length {
            Some(Change::Length(now.length))
        } else {
            (now.modified != self.modified).then_some(Change::Written)
        }
    }
}
