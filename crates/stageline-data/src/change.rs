//! Detects whether a file of a corpus has changed, from its metadata alone: [`Change`].

use std::fmt;
use std::fs::Metadata;
use std::time::SystemTime;

/// The kind of change that a file underwent while its corpus was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A corpus file's length changed while the corpus was open; the field is the new length in bytes.
    Length(u64),
    /// A change of a corpus file: the file was written to while the corpus was open, without a change of its length.
    /// Either its modification time differs, or a read reached the end of the file too early.
    Written,
    /// A corpus file was replaced by something other than a regular file, such as a folder.
    NoFile,
    /// A corpus file was deleted or moved away while the corpus was open.
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

/// The length and modification time of a corpus file, by which a later change of the file is detected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The length of a corpus file in bytes, as recorded when the corpus was opened.
    pub(crate) length: u64,
    /// The modification time of a corpus file, as recorded when the corpus was opened; `None` if the file system keeps
    /// none.
    pub(crate) modified: Option<SystemTime>,
}

impl Stamp {
    pub(crate) fn new(metadata: &Metadata) -> Self {
        Self { length: metadata.len(), modified: metadata.modified().ok() }
    }

    /// Compares the current `metadata` of a file with the recorded length and modification time. Returns the kind of
    /// change, or `None` if the file has not changed.
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
