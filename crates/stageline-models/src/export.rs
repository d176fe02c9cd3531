//! Writes the parameters of a pipeline as a model folder in the format of the Hugging Face hub.

use std::collections::HashMap;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use serde_json::Value;
use stageline::Modules;
use stageline_hub::{Dtype, Layout, TensorLayout, Values, check_export, check_file, copy_companions, write_config};

use crate::error::ModelError;
use crate::model::LanguageModel;
use crate::names::{Naming, Place};
use crate::parameters::{self, tensor_of, transposed};

/// A function that copies the values of a parameter from its device to the host's memory, and returns them in the order
/// in which the parameter's tensor is stored on the Hugging Face hub.
type Read = Box<dyn Fn() -> Vec<f32>>;

impl LanguageModel {
    /// Checks, before a training, that the trained model can be exported to `folder`. The check creates `folder` if
    /// necessary and a file in it, and removes both again.
    ///
    /// # Errors
    /// - [`ModelError::OwnFolder`] if the model, or the configuration of a new model, was opened from `folder`.
    /// - [`ModelError::Folder`] if the folder cannot be written, has something that the export cannot replace, or has
    ///   weights that readers would take instead of the new ones; if a file of the tokenizer cannot be read.
    pub fn check_export(&self, folder: impl AsRef<Path>) -> Result<(), ModelError> {
        let folder = folder.as_ref();
        let real = |path: &Path| path.canonicalize().ok();
        if real(self.home()).is_some_and(|home| real(folder) == Some(home)) {
            return Err(ModelError::OwnFolder { path: folder.to_owned() });
        }
        let layout = match self.folder() {
            Some(source) => source.layout()?,
            // A new model has one file of weights, and its tensors do not matter here.
            None => Layout::single([])?,
        };
        Ok(check_export(&layout, self.home(), folder)?)
    }

    /// Checks, before a long computation, that its result can be written to the file at `path`, which must not be one
    /// of the files that the model was opened from. A file that is there keeps its contents.
    ///
    /// # Errors
    /// Returns [`ModelError::Folder`] if the file cannot be written.
    pub fn check_output(&self, path: impl AsRef<Path>) -> Result<(), ModelError> {
        Ok(check_file(path, self.folder())?)
    }

    /// Writes the parameters of a pipeline to a folder, in the format that `from_pretrained` of the Transformers
    /// library reads. `modules` are the modules of the pipeline's stages.
    ///
    /// A model that was opened from a folder is written with the files, names, shapes and types of that folder, and its
    /// configuration and tokenizer are copied. A new model is written as one file in f32. Parameters are read one after
    /// another, so at most one of them is copied to the host's memory.
    ///
    /// # Errors
    /// Returns [`ModelError`] if a module is missing or of another type, a file cannot be written, or the model was
    /// opened from this folder.
    pub fn export(&self, modules: Modules, folder: impl AsRef<Path>) -> Result<(), ModelError> {
        let (first, blocks, last) = self.row().join(modules)?;
        let mut gather = Gather {
            path: parameters::Path::default(),
            place: Place::Embeddings,
            naming: self.naming(),
            found: Vec::new(),
        };
        first.visit(&mut gather);
        for (index, block) in blocks.iter().enumerate() {
            gather.place = Place::Block(index);
            block.visit(&mut gather);
        }
        gather.place = Place::Head;
        last.visit(&mut gather);
        let Gather { found, .. } = gather;
        let Some(source) = self.folder() else {
            let mut tensors: Vec<TensorLayout> = found.iter().map(|(tensor, _)| tensor.clone()).collect();
            let mut seen = std::collections::HashSet::new();
            tensors.retain(|tensor| seen.insert(tensor.name.clone()));
            let values = by_name(found);
            Layout::single(tensors)?.write(&folder, |name| Ok::<_, ModelError>(values[name]()))?;
            copy_companions(self.home(), &folder)?;
            return Ok(write_config(folder, &in_f32(self.config().clone()))?);
        };
        let values = by_name(found);
        let table = self.naming().table().name;
        source.layout()?.write(&folder, |name| -> Result<Values, ModelError> {
            let name = if self.naming().is_copy_of_table(name) { &table } else { name };
            match values.get(name) {
                Some(read) => Ok(read().into()),
                // Buffers that no parameter needs are copied.
                None => Ok(source.tensor(name)?.into()),
            }
        })?;
        copy_companions(source.path(), folder)?;
        Ok(())
    }
}

/// Returns a model's configuration with f32 as its data type. The Transformers library has two names for this field.
fn in_f32(mut config: Value) -> Value {
    let field = if config.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    config[field] = "float32".into();
    config
}

fn by_name(found: Vec<(TensorLayout, Read)>) -> HashMap<String, Read> {
    found.into_iter().map(|(tensor, read)| (tensor.name, read)).collect()
}

/// A visitor that collects, for each parameter of a layer, its tensor on the Hugging Face hub and the function that
/// reads its values.
struct Gather<'a> {
    path: parameters::Path,
    place: Place,
    naming: &'a Naming,
    found: Vec<(TensorLayout, Read)>,
}

impl ModuleVisitor for Gather<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = tensor_of(self.naming, self.place, &self.path.joined());
        let value = param.val();
        let mut shape = value.dims().to_vec();
        let read: Read = match (tensor.transposed, shape.as_slice()) {
            (true, &[rows, columns]) => {
                shape.reverse();
                Box::new(move || transposed(&numbers(&value), rows, columns))
            }
            _ => Box::new(move || numbers(&value)),
        };
        self.found.push((TensorLayout { name: tensor.name, dtype: Dtype::F32, shape }, read));
    }
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    let data = tensor.to_data();
    data.as_slice::<f32>().map_or_else(|_| data.iter::<f32>().collect(), <[f32]>::to_vec)
}
