//! The manifest of a checkpoint: everything but the tensors.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::damage::Damage;
use crate::format::checkpoint::Progress;
use crate::format::tensor::Tensor;
use crate::format::{json, seal};

/// The format version that is written, and the only one that is read.
pub(crate) const VERSION: u32 = 1;
/// The most bytes of a manifest or an index.
pub(crate) const MOST_BYTES: u64 = 64 << 20;

/// The manifest of a checkpoint: everything but the tensors.
///
/// Names and the values of `run` are unchanged text from the file: print them as [`Printable`](crate::Printable).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The format version, which is 1.
    pub version: u32,
    /// The version of this crate that wrote the checkpoint.
    pub stageline: String,
    /// The progress of the training.
    pub progress: Progress,
    /// The caller's configuration and fingerprints of the run.
    #[serde(with = "json::exact_values")]
    pub run: BTreeMap<String, Value>,
    /// The files of the checkpoint, except for the manifest.
    pub files: Vec<FileEntry>,
    /// The parameters by their global names.
    #[serde(deserialize_with = "json::unique_keys")]
    pub parameters: BTreeMap<String, TensorEntry>,
    /// The optimizer state by `<parameter>/<field>`.
    #[serde(deserialize_with = "json::unique_keys")]
    pub optimizer: BTreeMap<String, TensorEntry>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// The name in the checkpoint's folder, such as `blocks.3.safetensors` or `optimizer/blocks.3.safetensors`.
    pub name: String,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The SHA-256 of the file in lowercase hexadecimal digits.
    pub sha256: String,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// The name of the tensor's file.
    pub file: String,
    /// The type of an element.
    pub dtype: Dtype,
    /// The length of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
}

/// The one field that every format has.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// Why a text is not accepted as a manifest.
#[derive(Debug)]
pub(crate) enum ManifestError {
    /// The format is newer; the field is its version.
    Newer(u64),
    Damaged(Damage),
}

impl Manifest {
    /// Returns the text of the file, with its seal.
    pub(crate) fn to_text(&self) -> Result<String, serde_json::Error> {
        Ok(seal::seal(&serde_json::to_string_pretty(self)?))
    }

    /// Parses the output of [`to_text`](Self::to_text). `validate` checks whether the entries agree with each other.
    pub(crate) fn from_text(text: &[u8]) -> Result<Self, ManifestError> {
        let text = str::from_utf8(text).map_err(malformed)?;
        // Before the version, because the seal is the same in all formats: damage is never taken for a newer format.
        let object = seal::open(text).map_err(ManifestError::Damaged)?;
        let Version { version } = serde_json::from_str(&object).map_err(malformed)?;
        if version > VERSION.into() {
            return Err(ManifestError::Newer(version));
        }
        if version != u64::from(VERSION) {
            return Err(malformed(format_args!("there is no format {version}")));
        }
        serde_json::from_str(&object).map_err(malformed)
    }
}

impl TensorEntry {
    /// Returns the entry of a tensor in `file`.
    pub(crate) fn new(tensor: &Tensor, file: String) -> Self {
        Self { file, dtype: tensor.dtype, shape: tensor.shape.clone() }
    }
}

fn malformed(error: impl fmt::Display) -> ManifestError {
    ManifestError::Damaged(Damage::malformed(error))
}
