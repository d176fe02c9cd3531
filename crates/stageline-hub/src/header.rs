//! Creates the first bytes of a weights file to write: the header's length, and the header as JSON.

use std::path::Path;

use safetensors::tensor::TensorInfo;
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::error::FolderError;
use crate::layout::FileLayout;
use crate::refusal::Refusal;
use crate::tensor::byte_len;
use crate::weights::{LENGTH, MOST_HEADER};

/// The header of a safetensors file to write, as JSON. It lists the tensors in the order of their bytes in the file.
///
/// `Metadata` of the safetensors crate cannot be used here, because it writes the `__metadata__` entries in random
/// order.
struct Header<'a>(&'a FileLayout);

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("__metadata__", &self.0.metadata)?;
        let mut start = 0;
        for tensor in &self.0.tensors {
            // The sum does not overflow: the layout was checked when it was made, or it describes a mapped file.
            let end = start + byte_len(tensor.dtype, &tensor.shape).unwrap_or(0);
            let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets: (start, end) };
            map.serialize_entry(&tensor.name, &info)?;
            start = end;
        }
        map.end()
    }
}

/// Returns the bytes of a weights file before the tensors: the header's length, and the header as JSON. Their number is
/// a multiple of eight, so that the tensors are aligned. `path` names the file in errors.
pub(crate) fn bytes(file: &FileLayout, path: &Path) -> Result<Vec<u8>, FolderError> {
    let text = serde_json::to_vec(&Header(file));
    let mut text = text.map_err(|error| FolderError::refused(path, Refusal::Json { reason: error.to_string() }))?;
    text.resize(text.len().next_multiple_of(LENGTH), b' ');
    if text.len() as u64 > MOST_HEADER {
        return Err(FolderError::refused(path, Refusal::Header { bytes: text.len(), most: MOST_HEADER }));
    }
    Ok([&(text.len() as u64).to_le_bytes(), text.as_slice()].concat())
}
