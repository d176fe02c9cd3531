//! Writes a pipeline's parameters as a model folder in the format of the Hugging Face hub, and logits as a file.

use std::path::Path;

use serde_json::Value;
use stageline::{Modules, Pipeline};
use stageline_hub::{
    Dtype, Layout, ModelFolder, TensorFile, TensorLayout, Values, check_export, check_file, copy_companions,
    write_config,
};

use crate::error::ModelError;
use crate::families::llama::null_is_default;
use crate::families::{Family, Samples, architecture};
use crate::lora::Adapters;
use crate::model::{LanguageModel, Logits, Tokens};
use crate::parameters::{StoredValue, StoredValues, UNTIED, values_of};

impl LanguageModel {
    /// Checks, before training, that the trained model can be exported to `folder`. As a test, this method creates a
    /// file in `folder`, and a missing `folder` itself, and then removes what it has created.
    ///
    /// # Errors
    /// - [`ModelError::OwnFolder`] if the model, or a new model's configuration, was opened from `folder`.
    /// - [`ModelError::Folder`] if the folder cannot be written, or a tokenizer file cannot be read. The folder must
    ///   also have nothing that the export cannot replace, and no weights or files of another model that some programs
    ///   would also load.
    pub fn check_export(&self, folder: impl AsRef<Path>) -> Result<(), ModelError> {
        let folder = folder.as_ref();
        self.check_other(folder)?;
        let layout = match self.folder() {
            Some(source) => self.layout(source)?,
            // A new model is exported as one weights file, whose tensors do not matter for this check.
            None => Layout::single([])?,
        };
        Ok(check_export(&layout, self.home(), folder)?)
    }

    /// Returns an error if the export folder `folder` is the one from which the model, or a new model's configuration,
    /// was opened.
    fn check_other(&self, folder: &Path) -> Result<(), ModelError> {
        let real = |path: &Path| path.canonicalize().ok();
        match real(self.home()).is_some_and(|home| real(folder) == Some(home)) {
            true => Err(ModelError::OwnFolder { path: folder.to_owned() }),
            false => Ok(()),
        }
    }

    /// Checks, before a long computation, that its result can be written to the file at `path`. An existing file keeps
    /// its contents.
    ///
    /// # Errors
    /// Returns [`ModelError::Folder`] if the file cannot be written, or if the model was opened from it.
    pub fn check_output(&self, path: impl AsRef<Path>) -> Result<(), ModelError> {
        Ok(check_file(path, self.folder())?)
    }

    /// Computes the logits for rows of tokens, `[rows, length]`, with a pipeline of this model. Writes them to the
    /// safetensors file `path` as the f32 tensor `logits`, `[rows, length, vocabulary]`.
    ///
    /// Each inference batch has as many rows as a step has micro-batches; the last one may have fewer. Only one
    /// inference batch's logits are in memory at a time.
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

    /// Writes a pipeline's parameters to a model folder for `from_pretrained` of the Transformers library. `modules`
    /// are the modules of the pipeline's stages.
    ///
    /// A model that was opened from a folder keeps that folder's file names, tensor names, shapes and dtypes; its
    /// configuration and tokenizer are copied. Only obsolete buffers that the Transformers library ignores, such as
    /// GPT-2's `attn.masked_bias`, are left out. A new model is written as one f32 file. Parameters are read one at a
    /// time, so at most one is in host memory. An adapter is merged into its weight when the weight is read, on the
    /// stage's device.
    ///
    /// # Errors
    /// Returns [`ModelError`] if a module is missing or has the wrong type, if a file cannot be written, or if the
    /// model was opened from this folder. Also returns an error if the folder has files of another model that programs
    /// would also load. If these are not weights files, the new weights have already been written when the error is
    /// returned.
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

    /// Returns the export's layout (files, tensor names, dtypes and shapes) for a model opened from `source`: that
    /// folder's layout, with two exceptions:
    ///
    /// - Obsolete buffers are left out.
    /// - A tied head's second copy of the token embedding table gets the table's dtype. In two dtypes, the copies would
    ///   be rounded differently, and the exported model would not be tied.
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

/// Returns a new model's configuration for the export, in which:
///
/// - `dtype` and `torch_dtype`, if present, are f32; if both are missing, `torch_dtype` is added.
/// - `architectures`, if missing, is added with the model's class.
/// - `transformers_weights` is removed, because the weights file has the usual name.
/// - Fields that this crate reads and the Transformers library refuses are changed ([`complete`]).
fn of_export(mut config: Value) -> Value {
    complete(&mut config);
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

/// Changes those fields of a new model's configuration that this crate reads but the Transformers library refuses. The
/// new values are those with which the model was created:
///
/// - A `null` in place of a number or a boolean is removed, or replaced by the number. Nulls in fields that do not
///   change the model, such as `use_cache`, are removed.
/// - An integer in place of a float becomes a float.
/// - `layer_types` of a Llama is removed, because Llama attention ignores this field.
fn complete(config: &mut Value) {
    const UNUSED: [&str; 6] =
        ["use_cache", "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn"];
    const FLOATS: [&str; 3] = ["rms_norm_eps", "initializer_range", "layer_norm_epsilon"];
    let kind = config["model_type"].as_str().unwrap_or_default().to_owned();
    let family = Family::read(&kind, config).and_then(Result::ok);
    let Some(fields) = config.as_object_mut() else { return };
    let is_optional = |name: &str| null_is_default(name) || UNUSED.contains(&name);
    fields.retain(|name, value| !(value.is_null() && is_optional(name)));
    for value in fields.iter_mut().filter(|(name, _)| FLOATS.contains(&name.as_str())).map(|(_, value)| value) {
        value.as_f64().into_iter().for_each(|number| *value = number.into());
    }
    let Some(Family::Llama(model)) = family else { return };
    if kind == "llama" {
        fields.remove("layer_types");
        return;
    }
    // The Transformers library reads a Mistral with `layer_types` as a Ministral, which needs the field `head_dim`.
    let is_ministral = kind == "mistral" && fields.contains_key("layer_types");
    for (name, number) in [("head_dim", model.head_size), ("num_key_value_heads", model.key_value_heads)] {
        if fields.get(name).map_or(is_ministral, Value::is_null) {
            fields.insert(name.to_owned(), number.into());
        }
    }
}

/// Writes parameters to `folder` as one file in f32, `model.safetensors`. Creates the folder if necessary, and replaces
/// an old file of this name. Returns an error if the folder has other weights.
pub fn write_new(values: &StoredValues, folder: &Path) -> Result<(), ModelError> {
    let tensors = values.iter().map(|(name, value)| new_tensor(name, &value.shape));
    Ok(Layout::single(tensors)?.write(folder, |name| Ok::<_, ModelError>(values[name].read()))?)
}

/// Returns a weights file's entry for an f32 tensor with the given name and shape.
pub fn new_tensor(name: &str, shape: &[usize]) -> TensorLayout {
    TensorLayout { name: name.to_owned(), dtype: Dtype::F32, shape: shape.to_vec() }
}

/// Writes a trained copy of the model folder `source` to another folder: the weights files of `layout`, and the other
/// files of `source`. `parameter` returns the trained parameter for a tensor name; tensors that are no parameters, such
/// as causal masks, are copied.
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

    /// Tests fields that transformers 5 refuses in a `config.json`.
    #[test]
    fn fields_that_transformers_refuses_are_completed() {
        let own = json!({"num_key_value_heads": 2});
        let sizes = json!({"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2});
        let with = |fields: &[&Value]| {
            let all = fields.iter().flat_map(|fields| fields.as_object().unwrap().clone());
            Value::Object(all.collect())
        };
        let added = json!({"torch_dtype": "float32", "architectures": ["Own"]});
        let nulls = json!({"tie_word_embeddings": null, "attention_bias": null, "mlp_bias": null});
        let windows = json!({"use_sliding_window": null, "max_window_layers": null});
        let types = json!({"layer_types": ["sliding_attention", "full_attention"]});
        for (kind, given, expected) in [
            (
                "llama",
                with(&[&nulls, &types, &json!({"head_dim": null, "use_cache": null})]),
                json!({"head_dim": null}),
            ),
            (
                "qwen2",
                with(&[&own, &nulls, &windows, &json!({"head_dim": null})]),
                with(&[&own, &json!({"head_dim": 6})]),
            ),
            (
                "qwen3",
                json!({"head_dim": null, "num_key_value_heads": 2}),
                json!({"head_dim": 6, "num_key_value_heads": 2}),
            ),
            ("mistral", json!({"num_key_value_heads": null}), json!({"num_key_value_heads": 4})),
            (
                "mistral",
                with(&[&types, &json!({"num_key_value_heads": 2})]),
                with(&[&types, &json!({"head_dim": 6, "num_key_value_heads": 2})]),
            ),
            (
                "mistral",
                with(&[&own, &json!({"layer_types": null})]),
                with(&[&own, &json!({"layer_types": null, "head_dim": 6})]),
            ),
            (
                "llama",
                json!({"rms_norm_eps": 1, "initializer_range": 1}),
                json!({"rms_norm_eps": 1.0, "initializer_range": 1.0}),
            ),
            ("gpt2", json!({"tie_word_embeddings": null, "layer_norm_epsilon": 1}), json!({"layer_norm_epsilon": 1.0})),
        ] {
            let model = with(&[&sizes, &json!({"model_type": kind})]);
            let found = of_export(with(&[&model, &given, &json!({"architectures": ["Own"]})]));
            assert_eq!(found, with(&[&model, &expected, &added]), "{kind}: {given}");
        }
    }
}
