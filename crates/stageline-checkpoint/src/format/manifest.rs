//! The manifest of a checkpoint, `manifest.json`: everything but the tensors, as [`Manifest`] and as text.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::damage::Damage;
use crate::format::checkpoint::Progress;
use crate::format::frozen::FrozenTensor;
use crate::format::tensor::Tensor;
use crate::format::{json, seal};

/// The version of the checkpoint format that this crate writes, and the only one that it reads.
pub(crate) const VERSION: u32 = 1;
/// The largest length in bytes of a checkpoint's manifest file, and of its index file.
pub(crate) const MOST_BYTES: u64 = 64 << 20;

/// The manifest of a checkpoint (`manifest.json`): everything but the values of the tensors. It holds the progress and
/// the configuration of the run. It also lists the type, shape and file of each tensor, and the length and hash of each
/// file.
///
/// Names and the values of `run` are unchanged text from the file: print them as [`Printable`](crate::Printable).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format of the checkpoint; always 1, the only format so far.
    pub version: u32,
    /// The version of the stageline-checkpoint crate that wrote the checkpoint.
    pub stageline: String,
    /// The step counts and the loss scale of the training run at the time of the checkpoint.
    pub progress: Progress,
    /// The JSON values that the caller stores with the checkpoint, under names of its choice. Examples are the
    /// configuration of the run, and fingerprints such as a hash that identifies the training data.
    #[serde(with = "json::exact_values")]
    pub run: BTreeMap<String, Value>,
    /// The files of a checkpoint, without the manifest itself, with their lengths and hashes.
    pub files: Vec<FileEntry>,
    /// The type, shape and file of each parameter in a checkpoint, by the parameter's name in the whole model.
    #[serde(deserialize_with = "json::unique_keys")]
    pub parameters: BTreeMap<String, TensorEntry>,
    /// The type, shape and file of each tensor of the optimizer state in a checkpoint, by the tensor's name,
    /// `<parameter>/<field>`.
    #[serde(deserialize_with = "json::unique_keys")]
    pub optimizer: BTreeMap<String, TensorEntry>,
    /// The type, shape and hash of each frozen tensor whose values the checkpoint does not hold, by the tensor's name
    /// in the whole model. A checkpoint that holds all values has no such entry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "json::unique_keys")]
    pub frozen: BTreeMap<String, FrozenTensor>,
}

/// The manifest's entry for a file of the checkpoint: its name, length and hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// The name of the file in the checkpoint's folder, such as `blocks.3.safetensors` or
    /// `optimizer/blocks.3.safetensors`.
    pub name: String,
    /// The length in bytes of a file of the checkpoint.
    pub bytes: u64,
    /// The SHA-256 of a file of the checkpoint, in lowercase hexadecimal digits.
    pub sha256: String,
}

/// The manifest's entry for a tensor of the checkpoint: its file, type and shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// The name of the checkpoint file that contains a tensor, according to the manifest.
    pub file: String,
    /// The type of a tensor's elements, such as F32, according to the manifest of its checkpoint.
    pub dtype: Dtype,
    /// The length of each dimension of a tensor, according to the manifest of its checkpoint; empty for a scalar.
    pub shape: Vec<usize>,
}

/// The version number of the checkpoint format, as a manifest states it. It is parsed alone, before the other fields,
/// because manifests of all versions have this field.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// Why a text is not accepted as the manifest of a checkpoint.
#[derive(Debug)]
pub(crate) enum ManifestError {
    /// The manifest is in a newer checkpoint format than this crate reads; the value is the version of the format.
    Newer(u64),
    Damaged(Damage),
}

impl Manifest {
    /// Returns the text of a checkpoint's manifest file: pretty-printed JSON that ends with the seal, the SHA-256 of
    /// the text before it.
    pub(crate) fn to_text(&self) -> Result<String, serde_json::Error> {
        Ok(seal::seal(&serde_json::to_string_pretty(self)?))
    }

    /// Parses the text of a manifest file. Returns [`ManifestError::Newer`] if its format is newer than this crate's.
    /// Returns [`ManifestError::Damaged`] if its seal (the SHA-256 at its end) is missing or wrong, or its JSON is
    /// malformed. Contradictions between the entries of the manifest are not detected here.
    pub(crate) fn from_text(text: &[u8]) -> Result<Self, ManifestError> {
        let text = str::from_utf8(text).map_err(malformed)?;
        // The seal is checked before the version, because it is the same in all formats: damage is never taken for a
        // newer format.
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
    /// Makes the manifest's entry for a tensor of a checkpoint. `file` is the name of the checkpoint file in which the
    /// tensor is stored.
    pub(crate) fn new(tensor: &Tensor, file: String) -> Self {
        Self { file, dtype: tensor.dtype, shape: tensor.shape.clone() }
    }
}

fn malformed(error: impl fmt::Display) -> ManifestError {
    ManifestError::Damaged(Damage::malformed(error))
}
