//! What of a path is read.

use crate::error::CorpusError;

/// What of a path is read, and how much of it is held out.
#[derive(Clone, Debug, PartialEq)]
pub struct CorpusOptions {
    /// In a folder, only files with one of these extensions, such as `rs`; `None`, the default, for every regular
    /// file. A path that is itself a file is read whatever its extension.
    pub extensions: Option<Vec<String>>,
    /// Cap on the bytes of both sides together, at least 1; the last file is cut to meet it. By default 32 MiB.
    pub max_bytes: u64,
    /// Cap on the files of both sides together, at least 1. By default 16,384; each is opened once at the start, to see
    /// that it can be.
    pub max_files: usize,
    /// Share of the files, or of the bytes of a single file, that is held out: 0 (none) to below 1. By default 0.1.
    pub validation_fraction: f64,
    /// Decides which files are taken under the caps, in which order, and which are held out. By default 0.
    pub seed: u64,
}

impl Default for CorpusOptions {
    fn default() -> Self {
        Self { extensions: None, max_bytes: 32 << 20, max_files: 16_384, validation_fraction: 0.1, seed: 0 }
    }
}

impl CorpusOptions {
    /// Refuses what is outside its range.
    pub(crate) fn check(&self) -> Result<(), CorpusError> {
        let refuse = |name, value, allowed| Err(CorpusError::OutOfRange { name, value, allowed });
        if self.max_bytes == 0 {
            return refuse("max_bytes", self.max_bytes.to_string(), "at least 1");
        }
        if self.max_files == 0 {
            return refuse("max_files", self.max_files.to_string(), "at least 1");
        }
        if !(0.0..1.0).contains(&self.validation_fraction) {
            let value = self.validation_fraction.to_string();
            return refuse("validation_fraction", value, "at least 0 and below 1");
        }
        Ok(())
    }
}
