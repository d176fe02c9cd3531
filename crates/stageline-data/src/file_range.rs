//! A byte range of a file, which stays on disk and is read on request.
//!
//! Input: a path, a range of bytes, and the file's metadata from when the corpus was opened. Output: bytes, or an error
//! that says how the file changed. The code here must not keep a file open between two reads.

use std::fs::{self, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;

use stageline_checkpoint::open_at_once;

use crate::error::CorpusError;
use crate::file_change::{Change, Stamp};

/// Number of bytes per read when a whole file range is streamed, for example to compute its hash.
pub(crate) const CHUNK: u64 = 1 << 18;

/// A byte range of a corpus file, with the file's recorded length and modification time, so that a later change is
/// detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRange {
    pub(crate) path: PathBuf,
    /// The range of the file's bytes that the corpus uses, counted from the start of the file; never empty.
    pub(crate) bytes: Range<u64>,
    pub(crate) stamp: Stamp,
}

impl FileRange {
    pub(crate) fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    /// Fills `buffer` with bytes of the file range, starting at offset `skip` within the range. The range must have at
    /// least `skip + buffer.len()` bytes, which is not checked.
    ///
    /// The file is open only during this call, because a corpus may have more files than a process may keep open, and
    /// because an open file handle would not notice that another file has replaced the one at the path.
    ///
    /// # Errors
    /// Returns [`CorpusError::Changed`] if the file has changed, or [`CorpusError::Io`] if the file cannot be read.
    pub(crate) fn read(&self, skip: u64, buffer: &mut [u8]) -> Result<(), CorpusError> {
        let mut file = open_at_once(&self.path).map_err(|error| self.not_opened(error))?;
        self.check_unchanged(file.metadata())?;
        let read = file.seek(SeekFrom::Start(self.bytes.start + skip)).and_then(|_| file.read_exact(buffer));
        // The check is repeated after the read, because the file may have changed during the read. Such a change also
        // explains a failed read.
        self.check_unchanged(file.metadata())?;
        read.map_err(|error| self.failed(error))
    }

    /// Reads the whole file range in chunks, and calls `each` with the bytes of each chunk in order.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read).
    pub(crate) fn read_chunks(&self, mut each: impl FnMut(&[u8])) -> Result<(), CorpusError> {
        let mut buffer = vec![0; CHUNK.min(self.len()) as usize];
        for skip in (0..self.len()).step_by(CHUNK as usize) {
            let chunk = &mut buffer[..CHUNK.min(self.len() - skip) as usize];
            self.read(skip, chunk)?;
            each(chunk);
        }
        Ok(())
    }

    fn check_unchanged(&self, found: io::Result<Metadata>) -> Result<(), CorpusError> {
        let change = self.stamp.change(&found.map_err(|error| self.failed(error))?);
        change.map_or(Ok(()), |now| Err(self.changed(now)))
    }

    /// Returns the error for a corpus file that could not be opened. If something other than a file, such as a socket,
    /// is now at its path, the error says that the file has changed.
    fn not_opened(&self, error: io::Error) -> CorpusError {
        match fs::metadata(&self.path) {
            Ok(metadata) if !metadata.is_file() => self.changed(Change::NoFile),
            _ => self.failed(error),
        }
    }

    fn failed(&self, error: io::Error) -> CorpusError {
        match error.kind() {
            // `NotADirectory`: a file replaced a folder of the path.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => self.changed(Change::Gone),
            // The file was shortened and refilled before the second check, too fast to change its modification time.
            io::ErrorKind::UnexpectedEof => self.changed(Change::Written),
            _ => CorpusError::io(&self.path)(error),
        }
    }

    fn changed(&self, now: Change) -> CorpusError {
        CorpusError::Changed { path: self.path.clone(), had: self.stamp.length, now }
    }
}
