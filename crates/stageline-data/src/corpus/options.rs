//! The options of a corpus: which files to read, and which part to hold out for validation.

use crate::error::CorpusError;

/// The options of [`Corpus::open`](crate::Corpus::open): which files to read, and which part to hold out for
/// validation.
#[derive(Clone, Debug, PartialEq)]
pub struct CorpusOptions {
    /// The extensions of the files to read in a folder, such as `rs`. `None`, the default, reads every regular file. A
    /// corpus that is a single file may have any extension.
    pub extensions: Option<Vec<String>>,
    /// The maximum size in bytes of the training and validation texts together; at least 1. The last file is truncated
    /// to meet this limit. Opening the corpus reads all of these bytes once. The default is 32 MiB.
    pub max_bytes: u64,
    /// The maximum number of files that make up the training and validation texts together; at least 1. Opening the
    /// corpus reads each of them. The default is 16,384.
    pub max_files: usize,
    /// The fraction of the files, or of the bytes of a single file, that is held out for validation: from 0 (none) to
    /// below 1. The default is 0.1.
    pub validation_fraction: f64,
    /// The seed of each file's random numbers; the default is 0. It determines the sampling order of the files, until
    /// `max_bytes` or `max_files` is reached, and which files are held out for validation.
    pub seed: u64,
}

impl Default for CorpusOptions {
    fn default() -> Self {
        Self { extensions: None, max_bytes: 32 << 20, max_files: 16_384, validation_fraction: 0.1, seed: 0 }
    }
}

impl CorpusOptions {
    /// Checks that each option of a corpus is within the range that its field documents.
    pub(crate) fn validate(&self) -> Result<(), CorpusError> {
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
