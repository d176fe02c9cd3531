//! The index of sharded weights that Hugging Face's tools read, `model.safetensors.index.json`.
//!
//! The index lists the file of each parameter and the total size of all parameters in bytes. This crate takes both from
//! the manifest, and only checks that the index agrees.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::format::json;
use crate::format::manifest::TensorEntry;
use crate::format::tensor::byte_len;

#[derive(PartialEq, Serialize, Deserialize)]
struct Index {
    metadata: Total,
    #[serde(deserialize_with = "json::unique_keys")]
    weight_map: BTreeMap<String, String>,
}

#[derive(PartialEq, Serialize, Deserialize)]
struct Total {
    total_size: u64,
}

/// Returns the JSON text of `model.safetensors.index.json`, which tells Hugging Face's tools the file of each
/// parameter.
pub(crate) fn to_text(parameters: &BTreeMap<String, TensorEntry>) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&index(parameters)).map(|text| text + "\n")
}

/// Whether the index file `text` agrees with the manifest's `parameters`: the same names and files, and the right total
/// size in bytes. Returns the parser's error for an invalid index.
pub(crate) fn matches(text: &[u8], parameters: &BTreeMap<String, TensorEntry>) -> Result<bool, serde_json::Error> {
    Ok(serde_json::from_slice::<Index>(text)? == index(parameters))
}

fn index(parameters: &BTreeMap<String, TensorEntry>) -> Index {
    let bytes = |entry: &TensorEntry| byte_len(entry.dtype, &entry.shape).map_or(0, |bytes| bytes as u64);
    let total_size = parameters.values().map(bytes).fold(0, u64::saturating_add);
    let weight_map = parameters.iter().map(|(name, entry)| (name.clone(), entry.file.clone())).collect();
    Index { metadata: Total { total_size }, weight_map }
}
