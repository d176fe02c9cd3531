//! The index of a model folder, `model.safetensors.index.json`, which names the weights file of each tensor. Reads the
//! index and checks the file names in it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::disk;
use crate::error::FolderError;
use crate::names::is_weights_file;

/// The contents of the index of a model folder, `model.safetensors.index.json`.
#[derive(Serialize, Deserialize)]
pub(crate) struct Index {
    /// The `metadata` object of the model folder's index: entries about the whole model, such as `total_size`, the
    /// total number of bytes of all tensors.
    #[serde(default)]
    pub(crate) metadata: Map<String, Value>,
    /// A map from each tensor's name to the name of the weights file that contains the tensor.
    pub(crate) weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Reads the index of a model folder, a JSON file at `path`. Returns an error if the index names a file that is not
    /// a weights file in the same folder.
    pub(crate) fn read(path: &Path) -> Result<Self, FolderError> {
        let mut object = disk::read_json(path, "it is the index of the weights")?;
        object.retain(|name, value| name != "metadata" || !value.is_null());
        let index: Self =
            serde_json::from_value(Value::Object(object)).map_err(|error| FolderError::malformed(path, error))?;
        if index.weight_map.is_empty() {
            return Err(FolderError::malformed(path, "its weight_map has no tensor"));
        }
        match index.weight_map.iter().find(|(_, file)| !is_weights_file(file)) {
            Some((tensor, file)) => {
                let (path, tensor, file) = (path.to_path_buf(), tensor.clone(), file.clone());
                Err(FolderError::FileName { path, tensor, file })
            }
            None => Ok(index),
        }
    }

    /// Returns the names of the weights files in a model folder's index, sorted and without repetitions.
    pub(crate) fn files(&self) -> Vec<&str> {
        let mut files: Vec<&str> = self.weight_map.values().map(String::as_str).collect();
        files.sort_unstable();
        files.dedup();
        files
    }
}
