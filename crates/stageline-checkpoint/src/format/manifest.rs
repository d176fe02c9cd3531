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

/// The version of the checkpoint format that this crate writes, and the only version that it reads.
pub(crate) const VERSION: u32 = 1;
/// The maximum length in bytes of a checkpoint's manifest file, and of its index file.
pub(crate) const MOST_BYTES: u64 = 64 << 20;

/// The manifest of a checkpoint (`manifest.json`): everything but the values of the tensors. It contains the run's
/// progress and configuration. It also lists the dtype, shape and file of each tensor, and the length and hash of each
/// file.
///
/// Names and the values of `run` are untrusted text from the file: print them as [`Printable`](crate::Printable).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the checkpoint format; always 1, the only version so far.
    pub version: u32,
    /// The version of the stageline-checkpoint crate that wrote the checkpoint.
    pub stageline: String,
    /// The step counts and the loss scale of the training run at the time of the checkpoint.
    pub progress: Progress,
    /// The JSON values that the caller stores with the checkpoint, under names of its choice. Examples are the run's
    /// configuration, and fingerprints such as a hash of the training data.
    #[serde(with = "json::exact_values")]
    pub run: BTreeMap<String, Value>,
    /// The names, lengths and hashes of all files of the checkpoint except the manifest itself.
    pub files: Vec<FileEntry>,
    /// The dtype, shape and file of each parameter in the checkpoint, by the parameter's name in the whole model.
    #[serde(deserialize_with = "json::unique_keys")]
    pub parameters: BTreeMap<String, TensorEntry>,
    /// The dtype, shape and file of each optimizer state tensor in the checkpoint, by the tensor's name,
    /// `<parameter>/<field>`.
    #[serde(deserialize_with = "json::unique_keys")]
    pub optimizer: BTreeMap<String, TensorEntry>,
    /// The dtype, shape and hash of each frozen tensor whose values are not stored in the checkpoint, by the tensor's
    /// name in the whole model. The map is empty if the checkpoint contains all values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "json::unique_keys")]
    pub frozen: BTreeMap<String, FrozenTensor>,
}

/// The manifest's entry for a file of the checkpoint: its name, length and hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// The name of the file in the checkpoint folder, such as `blocks.3.safetensors` or
    /// `optimizer/blocks.3.safetensors`.
    pub name: String,
    /// The length in bytes of a checkpoint file.
    pub bytes: u64,
    /// The SHA-256 of a checkpoint file, in lowercase hexadecimal digits.
    pub sha256: String,
}

/// The manifest's entry for a tensor of the checkpoint: its file, dtype and shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// The name of the checkpoint file that contains the tensor, according to the manifest.
    pub file: String,
    /// The dtype of a checkpoint's tensor according to the manifest, such as F32.
    pub dtype: Dtype,
    /// The shape of a checkpoint's tensor according to the manifest: the length of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
}

/// The manifest's field `version`, parsed before all other fields, because it has the same form in every version of the
/// checkpoint format.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// The reason why a text is not a valid checkpoint manifest for this crate.
#[derive(Debug)]
pub(crate) enum ManifestError {
    /// The manifest has a newer checkpoint format than this crate can read; the value is the format's version.
    Newer(u64),
    Damaged(Damage),
}

impl Manifest {
    /// Returns the contents of the manifest file: pretty-printed JSON that ends with the seal, the SHA-256 of all text
    /// before it.
    pub(crate) fn to_text(&self) -> Result<String, serde_json::Error> {
        Ok(seal::seal(&serde_json::to_string_pretty(self)?))
    }

    /// Parses the contents of a manifest file. Returns [`ManifestError::Newer`] if its format is newer than this
    /// crate's. Returns [`ManifestError::Damaged`] if its seal (the SHA-256 at its end) is missing or wrong, or its
    /// JSON is malformed. Contradictions between the manifest's entries are not detected here.
    pub(crate) fn from_text(text: &[u8]) -> Result<Self, ManifestError> {
        let text = str::from_utf8(text).map_err(malformed)?;
        // The seal is checked before the version, because it is the same in all formats. Damage is therefore never
        // mistaken for a newer format.
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
    /// Creates the manifest's entry for a tensor of a checkpoint. `file` is the name of the checkpoint file that
    /// contains the tensor.
    pub(crate) fn new(tensor: &Tensor, file: String) -> Self {
        Self { file, dtype: tensor.dtype, shape: tensor.shape.clone() }
    }
}

fn malformed(error: impl fmt::Display) -> ManifestError {
    ManifestError::Damaged(Damage::malformed(error))
}
