//! What a checkpoint says of itself.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::Progress;
use crate::damage::Damage;
use crate::tensor::Tensor;
use crate::{exact, seal, unique};

/// The format that is written, and the only one that is read.
pub(crate) const VERSION: u32 = 1;
/// The most bytes of a manifest, or of an index.
pub(crate) const MOST_BYTES: u64 = 64 << 20;

/// What a checkpoint says of itself: all but the tensors.
///
/// Names and the values of `run` are as the file has them: print them as [`Printable`](crate::Printable).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The format, which is 1.
    pub version: u32,
    /// The version of this crate that wrote it.
    pub stageline: String,
    /// How far training was.
    pub progress: Progress,
    /// Configuration and fingerprints of the run, which are the caller's.
    #[serde(with = "exact::run")]
    pub run: BTreeMap<String, Value>,
    /// All files but the manifest.
    pub files: Vec<FileEntry>,
    /// Parameters, by their global names.
    #[serde(deserialize_with = "unique::deserialize")]
    pub parameters: BTreeMap<String, TensorEntry>,
    /// Optimizer state, by `<parameter>/<field>`.
    #[serde(deserialize_with = "unique::deserialize")]
    pub optimizer: BTreeMap<String, TensorEntry>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name in the folder, such as `blocks.3.safetensors` or `optimizer/blocks.3.safetensors`.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its SHA-256, in small hexadecimal digits.
    pub sha256: String,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// The name of its file.
    pub file: String,
    /// Type of an element.
    pub dtype: Dtype,
    /// Length of each dimension.
    pub shape: Vec<usize>,
}

/// The one field that every format has.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// Why a text is not taken for a manifest.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Its format is newer.
    Newer(u64),
    /// It is wrong.
    Damaged(Damage),
}

impl Manifest {
    /// The manifest as it is written, with its seal.
    pub(crate) fn to_text(&self) -> Result<String, serde_json::Error> {
        Ok(seal::seal(&serde_json::to_string_pretty(self)?))
    }

    /// Reads what [`to_text`](Self::to_text) wrote; whether it is sound, `check` says.
    pub(crate) fn from_text(text: &[u8]) -> Result<Self, Refused> {
        let text = str::from_utf8(text).map_err(form)?;
        // The seal is the same in all formats: what has changed on disk is not taken for a newer format.
        let object = seal::open(text).map_err(Refused::Damaged)?;
        let Version { version } = serde_json::from_str(&object).map_err(form)?;
        if version > VERSION.into() {
            return Err(Refused::Newer(version));
        }
        if version != u64::from(VERSION) {
            return Err(form(format_args!("there is no format {version}")));
        }
        serde_json::from_str(&object).map_err(form)
    }
}

impl TensorEntry {
    /// The entry of a tensor that lies in `file`.
    pub(crate) fn of(tensor: &Tensor, file: String) -> Self {
        Self { file, dtype: tensor.dtype, shape: tensor.shape.clone() }
    }
}

fn form(error: impl fmt::Display) -> Refused {
    Refused::Damaged(Damage::form(error))
}
