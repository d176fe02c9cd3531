//! Opens a model folder of the Hugging Face hub, and creates a new model from a configuration.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use burn::module::ParamId;
use serde_json::Value;
use stageline::Precision;
use stageline_hub::{FolderError, ModelFolder, read_file};

use super::language_model::{Inner, LanguageModel, folder_of};
use crate::attention::KeyValueCache;
use crate::error::ModelError;
use crate::families::limits::LARGEST_CONFIG;
use crate::families::{Family, KNOWN, unsupported};
use crate::parameters::{Naming, UNTIED, Unknown, no_tensors, unknown};

impl LanguageModel {
    /// Opens a model folder in the format of the Hugging Face hub: `config.json`, and `model.safetensors` or the shards
    /// that `model.safetensors.index.json` lists. No parameter is read yet.
    ///
    /// # Errors
    /// Returns [`ModelError`] if a file cannot be read, the architecture is not supported, or the tensors do not match
    /// the configuration.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, ModelError> {
        let folder = Arc::new(ModelFolder::open(folder)?);
        let config = folder.config()?.clone();
        let path = folder.path().join("config.json");
        let wrong = |reason: String| ModelError::Config { path: path.clone(), reason };
        unsupported::check_weights_file(&config, folder.weights_name()).map_err(wrong)?;
        let generation = folder.generation_config().cloned();
        let model = Self::of(&path, config, generation, Some(Arc::clone(&folder)), 0)?;
        model.check(&folder)?;
        Ok(model)
    }

    /// Creates a new model whose parameters are initialised at random from `seed`. `config` is the path of a file in
    /// the format of `config.json`, or of a folder that contains one. Weights are normally distributed with the
    /// standard deviation `initializer_range`, and biases are 0.
    ///
    /// # Errors
    /// Returns [`ModelError`] if the file cannot be read, the architecture is not supported, or a field is missing or
    /// invalid.
    pub fn new(config: impl AsRef<Path>, seed: u64) -> Result<Self, ModelError> {
        let path = config.as_ref();
        let path = if path.is_dir() { &path.join("config.json") } else { path };
        let wrong = |reason: String| ModelError::Config { path: path.to_owned(), reason };
        let text = read_file(path, LARGEST_CONFIG)?;
        let config = serde_json::from_slice(&text).map_err(|error| wrong(format!("it is not JSON: {error}")))?;
        let generation = generation_config_of(folder_of(path))?;
        Self::of(path, config, generation, None, seed)
    }

    fn of(
        path: &Path,
        config: Value,
        generation: Option<Value>,
        folder: Option<Arc<ModelFolder>>,
        seed: u64,
    ) -> Result<Self, ModelError> {
        let wrong = |reason: String| ModelError::Config { path: path.to_owned(), reason };
        let kind = match config.get("model_type") {
            Some(Value::String(kind)) => kind,
            Some(other) => return Err(wrong(format!("model_type must be one of {}, not {other}", KNOWN.join(", ")))),
            None => return Err(wrong(format!("it has no model_type; known are {}", KNOWN.join(", ")))),
        };
        let Some(family) = Family::read(kind, &config) else {
            let (path, found) = (path.to_owned(), kind.clone());
            return Err(ModelError::UnknownArchitecture { path, found, known: KNOWN });
        };
        let family = family.map_err(wrong)?;
        let naming = Naming::new(family.names(), family.tied());
        let naming = match &folder {
            Some(folder) => naming.in_folder(|name| folder.has(name)),
            None => naming,
        };
        // As in the Transformers library, a head is untied if the folder has a weight for it whose values differ from
        // the token embedding table, whatever the configuration says.
        let naming = match &folder {
            Some(folder) if has_own_head(folder, &naming) => naming.untied(),
            _ => naming,
        };
        let (angles, cache) = (family.angles(), KeyValueCache::default());
        let (table, frozen) = (ParamId::new(), no_tensors());
        Ok(Self(Arc::new(Inner {
            family,
            config,
            generation,
            naming,
            folder,
            config_path: path.to_owned(),
            seed,
            table,
            angles,
            cache,
            frozen,
            adapters: None,
            precision: Precision::Full,
        })))
    }

    /// Checks that the model folder has exactly the tensors that the configuration describes, in the right shapes. Two
    /// kinds of extra tensors are allowed: buffers, such as causal masks, and a tied head's second copy of the token
    /// embedding table.
    fn check(&self, folder: &ModelFolder) -> Result<(), ModelError> {
        let parameters = self.parameters();
        parameters.iter().try_for_each(|tensor| tensor.check(folder))?;
        let needed: HashSet<_> = parameters.into_iter().map(|tensor| tensor.name).collect();
        let is_known = |name: &str| needed.contains(name) || self.0.naming.is_spare(name);
        match unknown(folder, is_known) {
            Some(Unknown { path, name, more }) => Err(ModelError::UnexpectedTensor { path, name, more }),
            None => Ok(()),
        }
    }
}

/// Reads the `generation_config.json` beside a new model's configuration; `None` if there is no such file.
fn generation_config_of(folder: &Path) -> Result<Option<Value>, ModelError> {
    let path = folder.join("generation_config.json");
    let text = match read_file(&path, LARGEST_CONFIG) {
        Err(FolderError::FileNotFound { .. }) => return Ok(None),
        text => text?,
    };
    match serde_json::from_slice(&text) {
        Ok(config @ Value::Object(_)) => Ok(Some(config)),
        Ok(_) => Err(ModelError::Config { path, reason: "it is not an object".to_owned() }),
        Err(error) => Err(ModelError::Config { path, reason: error.to_string() }),
    }
}

/// Whether the head's projection is a separate parameter, although the configuration ties it to the token embedding
/// table. This is true if the folder has a tensor for the projection whose values differ from the table's.
fn has_own_head(folder: &ModelFolder, naming: &Naming) -> bool {
    let table = naming.table().name;
    // If the two tensors cannot be compared, the later check of the parameters returns an error.
    naming.tied() && table != UNTIED && folder.has(UNTIED) && !folder.has_same_values(UNTIED, &table).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_file_name_is_in_the_current_folder() {
        for (file, folder) in [("config.json", "."), ("./config.json", "."), ("a/b.json", "a"), ("/b.json", "/")] {
            assert_eq!(folder_of(Path::new(file)), Path::new(folder));
        }
        assert!(folder_of(Path::new("config.json")).canonicalize().is_ok());
    }
}
