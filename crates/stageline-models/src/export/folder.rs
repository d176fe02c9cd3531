//! Writes the parameters of a pipeline as a model folder in the format of the Hugging Face hub, and logits as a file.

use std::path::Path;

use serde_json::Value;
use stageline::{Modules, Pipeline};
use stageline_hub::{
    Dtype, Layout, ModelFolder, TensorFile, TensorLayout, Values, check_export, check_file, copy_companions,
    write_config,
};

use crate::error::ModelError;
use crate::families::{Samples, architecture};
use crate::lora::Adapters;
use crate::model::{LanguageModel, Logits, Tokens};
use crate::parameters::{StoredValue, StoredValues, UNTIED, values_of};

impl LanguageModel {
    /// Checks, before a training, that the trained model can be exported to `folder`. The check creates a file in
    /// `folder`, and `folder` itself if necessary, and removes again what it created.
    ///
    /// # Errors
    /// - [`ModelError::OwnFolder`] if the model, or the configuration of a new model, was opened from `folder`.
    /// - [`ModelError::Folder`] if the folder cannot be written, or if a file of the tokenizer cannot be read. The
    ///   error is also returned if the folder has something that the export cannot replace, or weights or files of
    ///   another model that some programs would read too.
    pub fn check_export(&self, folder: impl AsRef<Path>) -> Result<(), ModelError> {
        let folder = folder.as_ref();
        self.check_other(folder)?;
        let layout = match self.folder() {
            Some(source) => self.layout(source)?,
            // A new model has one weights file, and this check does not depend on the tensors in it.
            None => Layout::single([])?,
        };
        Ok(check_export(&layout, self.home(), folder)?)
    }

    /// Checks that `folder` is not the one from which the model, or the configuration of a new model, was opened.
    fn check_other(&self, folder: &Path) -> Result<(), ModelError> {
        let real = |path: &Path| path.canonicalize().ok();
        match real(self.home()).is_some_and(|home| real(folder) == Some(home)) {
            true => Err(ModelError::OwnFolder { path: folder.to_owned() }),
            false => Ok(()),
        }
    }

    /// Checks, before a long computation, that its result can be written to the file at `path`. If the file exists, it
    /// keeps its contents.
    ///
    /// # Errors
    /// Returns [`ModelError::Folder`] if the file cannot be written, or if it is one of those from which the model was
    /// opened.
    pub fn check_output(&self, path: impl AsRef<Path>) -> Result<(), ModelError> {
        Ok(check_file(path, self.folder())?)
    }

    /// Computes the logits for rows of tokens, `[rows, length]`, with a pipeline of this model. Writes them to the
    /// safetensors file `path` as the f32 tensor `logits`, `[rows, length, vocabulary]`.
    ///
    /// Each inference takes as many rows as a step has micro-batches; the last may take fewer. Only the logits of one
    /// inference are in memory.
    ///
    /// # Errors
    /// Returns [`ModelError::Step`] if the pipeline fails, or [`ModelError::Folder`] if the file cannot be written.
    pub fn write_logits(
        &self,
        pipeline: &mut Pipeline<Samples, Logits, Tokens>,
        tokens: Tokens,
        path: impl AsRef<Path>,
    ) -> Result<(), ModelError> {
        let [rows, length] = tokens.dims();
        let mut file = TensorFile::create(path, "logits", &[rows, length, self.vocabulary()])?;
        for tokens in tokens.split(pipeline.plan().micro_batches(), 0) {
            file.push(pipeline.infer((tokens, None))?.into_data().iter::<f32>())?;
        }
        Ok(file.finish()?)
    }

    /// Writes the parameters of a pipeline to a folder, in the format that `from_pretrained` of the Transformers
    /// library reads. `modules` are the modules of the pipeline's stages.
    ///
    /// For a model that was opened from a folder, the files, names, shapes and types are those of that folder. Only
    /// buffers of old files that the Transformers library no longer knows, such as `attn.masked_bias` of GPT-2, are
    /// left out. The configuration and the tokenizer are copied. A new model is written as one file in f32. Parameters
    /// are read one after another, so at most one of them is copied to the host's memory. Adapters are added to each
    /// weight when it is read, on the device of its stage.
    ///
    /// # Errors
    /// Returns [`ModelError`] if a module is missing or of another type, a file cannot be written, or the model was
    /// opened from this folder. Also returns an error if the folder has files of another model that programs would read
    /// too. If these are no weights files, the new weights have already been written when the error is returned.
    pub fn export(&self, modules: Modules, folder: impl AsRef<Path>) -> Result<(), ModelError> {
        self.check_other(folder.as_ref())?;
        let values = values_of(&self.row(), modules, self.naming(), self.adapters().map(Adapters::scale))?;
        let Some(source) = self.folder() else {
            write_new(&values, folder.as_ref())?;
            copy_companions(self.home(), &folder)?;
            return Ok(write_config(folder, &of_export(self.config().clone()))?);
        };
        let table = self.naming().table().name;
        let parameter =
            |name: &str| values.get(if self.naming().is_copy_of_table(name) { table.as_str() } else { name });
        write_copy(&self.layout(source)?, source, parameter, folder.as_ref())
    }

    /// Returns the layout for the export of a model that was opened from the folder `source`. It is the layout of this
    /// folder, with two exceptions. Obsolete buffers are left out. If a tied head has a second copy of the table of
    /// token embeddings, the copy gets the type of the table. Otherwise the two would be rounded differently, and the
    /// exported model would not be tied.
    fn layout(&self, source: &ModelFolder) -> Result<Layout, ModelError> {
        let table = self.naming().table().name;
        let layout = source.layout()?.without(|name| self.naming().is_obsolete(name));
        let dtype = source.tensors().find(|(name, _)| *name == table).map(|(_, info)| info.dtype);
        Ok(match dtype.filter(|_| self.naming().is_copy_of_table(UNTIED)) {
            Some(dtype) => layout.with_type(UNTIED, dtype),
            None => layout,
        })
    }
}

/// Returns the configuration with which a new model is exported. Its data type is f32, in each of the fields `dtype`
/// and `torch_dtype` that it has, or in `torch_dtype` if it has neither. If it has no `architectures`, the class of the
/// model is added. The field `transformers_weights` is removed, because the export uses the usual name of the weights
/// file.
fn of_export(mut config: Value) -> Value {
    if let Some(fields) = config.as_object_mut() {
        fields.remove("transformers_weights");
    }
    let has_dtype = config.get("dtype").is_some();
    if has_dtype {
        config["dtype"] = "float32".into();
    }
    if !has_dtype || config.get("torch_dtype").is_some() {
        config["torch_dtype"] = "float32".into();
    }
    if config.get("architectures").is_none_or(Value::is_null) {
        let class = architecture(config["model_type"].as_str().unwrap_or_default());
        config["architectures"] = vec![class].into();
    }
    config
}

/// Writes parameters to `folder` as one file in f32, `model.safetensors`. Creates the folder if necessary, and replaces
/// an old file with this name. A folder with other weights is an error.
pub fn write_new(values: &StoredValues, folder: &Path) -> Result<(), ModelError> {
    let tensors = values.iter().map(|(name, value)| new_tensor(name, &value.shape));
    Ok(Layout::single(tensors)?.write(folder, |name| Ok::<_, ModelError>(values[name].read()))?)
}

/// Returns the layout of a tensor in f32.
pub fn new_tensor(name: &str, shape: &[usize]) -> TensorLayout {
    TensorLayout { name: name.to_owned(), dtype: Dtype::F32, shape: shape.to_vec() }
}

/// Writes a trained copy of the model in the folder `source` to another folder: the weights files that `layout`
/// describes, and the files beside them. `parameter` returns the parameter that a tensor stores. Tensors that store
/// none, such as causal masks, are copied from `source`.
pub fn write_copy<'a>(
    layout: &Layout,
    source: &ModelFolder,
    parameter: impl Fn(&str) -> Option<&'a StoredValue>,
    folder: &Path,
) -> Result<(), ModelError> {
    layout.write(folder, |name| -> Result<Values, ModelError> {
        match parameter(name) {
            Some(parameter) => Ok(parameter.read().into()),
            None => Ok(source.tensor(name)?.into()),
        }
    })?;
    copy_companions(source.path(), folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_configuration_of_an_export_has_f32_and_a_class() {
        for (config, expected) in [
            (
                json!({"model_type": "gpt2"}),
                json!({"model_type": "gpt2", "torch_dtype": "float32", "architectures": ["GPT2LMHeadModel"]}),
            ),
            (
                json!({"model_type": "qwen3", "dtype": "bfloat16", "torch_dtype": "float16", "architectures": null}),
                json!({
                    "model_type": "qwen3", "dtype": "float32", "torch_dtype": "float32",
                    "architectures": ["Qwen3ForCausalLM"],
                }),
            ),
            (
                json!({
                    "model_type": "llama", "dtype": null, "architectures": ["Own"], "transformers_weights": "a.safetensors",
                }),
                json!({"model_type": "llama", "dtype": "float32", "architectures": ["Own"]}),
            ),
        ] {
            assert_eq!(of_export(config), expected);
        }
    }
}
