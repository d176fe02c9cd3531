//! A checkpoint file that is hashed while it is written, and synced to disk at the end.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::error::CheckpointError;
use crate::format::manifest::FileEntry;
use crate::format::seal;

/// Number of bytes that are written and hashed at a time: a checkpoint file's chunk is then still in the CPU cache when
/// it is hashed.
const CHUNK: usize = 1 << 20;

/// A checkpoint file that is being written, with the length and the SHA-256 state of the bytes so far.
pub(crate) struct Output {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: Sha256,
    bytes: u64,
}

impl Output {
    /// Creates a new checkpoint file at `path`. Returns [`CheckpointError::Write`] if something already exists there,
    /// or if the file cannot be created.
    pub(crate) fn create(path: PathBuf) -> Result<Self, CheckpointError> {
        let file = File::create_new(&path).map_err(CheckpointError::write("create the file", &path))?;
        Ok(Self { path, file: BufWriter::with_capacity(CHUNK, file), hasher: Sha256::new(), bytes: 0 })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        for chunk in bytes.chunks(CHUNK) {
            self.file.write_all(chunk).map_err(CheckpointError::write("write", &self.path))?;
            self.hasher.update(chunk);
            self.bytes += chunk.len() as u64;
        }
        Ok(())
    }

    /// Passes all buffered bytes of a checkpoint file to the operating system, so that they are in the file if a test
    /// kills the process at the next fault-injection point ([`WritePoint`](crate::WritePoint)).
    pub(crate) fn flush(&mut self) -> Result<(), CheckpointError> {
        self.file.flush().map_err(CheckpointError::write("write", &self.path))
    }

    /// Syncs a checkpoint file to disk, so that its contents survive a power loss. Returns the manifest's entry for the
    /// file: `name`, and the length and SHA-256 of the bytes that were written.
    pub(crate) fn sync(mut self, name: &str) -> Result<FileEntry, CheckpointError> {
        self.flush()?;
        let synced: io::Result<()> = self.file.get_ref().sync_all();
        synced.map_err(CheckpointError::write("sync", &self.path))?;
        Ok(FileEntry { name: name.to_owned(), bytes: self.bytes, sha256: seal::to_hex(self.hasher) })
    }
}
