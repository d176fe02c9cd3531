//! What a file was when it was taken, and what has become of it.

use std::fmt;
use std::fs::Metadata;
use std::time::SystemTime;

/// What has become of a file while its corpus was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// It has another length, now this many bytes.
    Length(u64),
    /// It has the same length and was written to since, as its modification time or an end too early shows.
    Written,
    /// It was replaced by something that is no file, such as a folder.
    NoFile,
    /// It was deleted or moved away.
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

/// What tells a file from what becomes of it, without a look at its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// In bytes, of the whole file.
    pub(crate) length: u64,
    /// `None` where the file system keeps no such time.
    modified: Option<SystemTime>,
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self { length: metadata.len(), modified: metadata.modified().ok() }
    }

    /// What has become of the file, if it is not what it was.
    pub(crate) fn change(&self, metadata: &Metadata) -> Option<Change> {
        let now = Self::of(metadata);
        if !metadata.is_file() {
            Some(Change::NoFile)
        } else if now.length != self.length {
            Some(Change::Length(now.length))
        } else {
            (now.modified != self.modified).then_some(Change::Written)
        }
    }
}
