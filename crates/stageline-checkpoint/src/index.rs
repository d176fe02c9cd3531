//! The index of sharded weights that Hugging Face's tools read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::manifest::TensorEntry;
use crate::tensor::byte_len;
use crate::unique;

#[derive(PartialEq, Serialize, Deserialize)]
struct Index {
    metadata: Total,
    #[serde(deserialize_with = "unique::deserialize")]
    weight_map: BTreeMap<String, String>,
}

#[derive(PartialEq, Serialize, Deserialize)]
struct Total {
    total_size: u64,
}

/// The text of the index of these parameters.
pub(crate) fn to_text(parameters: &BTreeMap<String, TensorEntry>) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&of(parameters)).map(|text| text + "\n")
}

/// Whether `text` is an index of these parameters.
pub(crate) fn is_of(text: &[u8], parameters: &BTreeMap<String, TensorEntry>) -> Result<bool, serde_json::Error> {
    Ok(serde_json::from_slice::<Index>(text)? == of(parameters))
}

fn of(parameters: &BTreeMap<String, TensorEntry>) -> Index {
    let bytes = |entry: &TensorEntry| byte_len(entry.dtype, &entry.shape).map_or(0, |bytes| bytes as u64);
    let total_size = parameters.values().map(bytes).fold(0, u64::saturating_add);
    let weight_map = parameters.iter().map(|(name, entry)| (name.clone(), entry.file.clone())).collect();
    Index { metadata: Total { total_size }, weight_map }
}
