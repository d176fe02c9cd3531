//! Detects whether a text file has changed, from its metadata alone: [`Change`].
//!
//! Input: a file's metadata at two times. Output: the kind of change, or none. The code here must not open or read a
//! file.

use std::fmt;
use std::fs::Metadata;
use std::time::SystemTime;

/// The kind of change to a text file while a corpus was open, or while the file was tokenised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The text file has a different length; the value is the new length in bytes.
    Length(u64),
    /// The text file was written to, but its length is unchanged: its modification time differs, or a read found it
    /// shorter for a moment.
    Written,
    /// Something other than a regular file, such as a folder, has taken the text file's place.
    NoFile,
    /// The text file was deleted or moved away.
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

/// The length and modification time of a text file, recorded to detect a later change of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) length: u64,
    /// The modification time of a text file; `None` if the file system does not record modification times.
    pub(crate) modified: Option<SystemTime>,
}

impl Stamp {
    pub(crate) fn new(metadata: &Metadata) -> Self {
        Self { length: metadata.len(), modified: metadata.modified().ok() }
    }

    /// Compares the current `metadata` of a text file with the recorded length and modification time. Returns the kind
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
