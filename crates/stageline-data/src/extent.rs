//! A stretch of a file, read when it is asked for.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;

use crate::change::{Change, Stamp};
use crate::error::CorpusError;

/// A stretch of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) path: PathBuf,
    /// From the start of the file; never empty.
    pub(crate) bytes: Range<u64>,
    /// What the file was when it was taken.
    pub(crate) stamp: Stamp,
}

impl Extent {
    /// How many bytes it has.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    /// Fills `buffer` with the bytes that follow its first `skip`; it must hold that many.
    ///
    /// The file is open for the time of this call only: a process may have fewer files open than a corpus has, and a
    /// file that was replaced under its name would not be missed through an old handle.
    ///
    /// # Errors
    /// [`CorpusError::Changed`] where the file is not what it was, and [`CorpusError::Io`].
    pub(crate) fn read(&self, skip: u64, buffer: &mut [u8]) -> Result<(), CorpusError> {
        // Before it is opened, because to open a pipe is to wait for its other end.
        self.unchanged(fs::metadata(&self.path))?;
        let mut file = File::open(&self.path).map_err(|error| self.failed(error))?;
        let read = file.seek(SeekFrom::Start(self.bytes.start + skip)).and_then(|_| file.read_exact(buffer));
        // And once it is read, because it may have been written to in between; that also says why a read failed.
        self.unchanged(file.metadata())?;
        read.map_err(|error| self.failed(error))
    }

    fn unchanged(&self, found: io::Result<Metadata>) -> Result<(), CorpusError> {
        let change = self.stamp.change(&found.map_err(|error| self.failed(error))?);
        change.map_or(Ok(()), |now| Err(self.changed(now)))
    }

    fn failed(&self, error: io::Error) -> CorpusError {
        match error.kind() {
            // The second is a folder on its way that became a file.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => self.changed(Change::Gone),
            // It shrank and was filled again before its time was looked at, within the resolution of that time.
            io::ErrorKind::UnexpectedEof => self.changed(Change::Written),
            _ => CorpusError::io(&self.path)(error),
        }
    }

    fn changed(&self, now: Change) -> CorpusError {
        CorpusError::Changed { path: self.path.clone(), had: self.stamp.length, now }
    }
}
