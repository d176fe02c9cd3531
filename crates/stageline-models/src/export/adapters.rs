//! Writes a pipeline's LoRA adapters as an adapter folder of the PEFT library.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use burn::module::{ModuleVisitor, Param};
use burn::tensor::Tensor;
use serde_json::Value;
use stageline::Modules;
use stageline_hub::{Layout, check_weights, write_adapter_config};

use crate::error::ModelError;
use crate::export::new_tensor;
use crate::lora::Adapters;
use crate::model::LanguageModel;
use crate::parameters::{Position, StoredValue, StoredValues};

impl LanguageModel {
    /// Checks, before training, that the model has adapters and that they can be exported to `folder`. As a test, this
    /// method creates a file in `folder`, and a missing `folder` itself, and then removes what it has created.
    ///
    /// # Errors
    /// - [`ModelError::NoAdapters`] if the model has no adapters.
    /// - [`ModelError::Folder`] if the folder cannot be written, is the one that the adapters were opened from, or has
    ///   weights that some programs would load instead of the adapters.
    pub fn check_adapter_export(&self, folder: impl AsRef<Path>) -> Result<(), ModelError> {
        let adapters = self.adapters().ok_or(ModelError::NoAdapters)?;
        Ok(check_weights(&adapters.layout(&HashMap::new())?, folder)?)
    }

    /// Writes a pipeline's adapters to an adapter folder of the PEFT library: `adapter_model.safetensors` and
    /// `adapter_config.json`. `modules` are the modules of the pipeline's stages. New adapters are written in f32.
    /// Adapters that were opened from a folder keep the dtypes of that folder.
    ///
    /// # Errors
    /// Returns the errors of [`check_adapter_export`](Self::check_adapter_export), and an error if a module is missing
    /// or has the wrong type.
    pub fn export_adapter(&self, modules: Modules, folder: impl AsRef<Path>) -> Result<(), ModelError> {
        let adapters = self.adapters().ok_or(ModelError::NoAdapters)?;
        let row = self.row();
        let mut found =
            Factors { adapters, position: Position::default(), weight: String::new(), values: HashMap::new() };
        row.visit(&row.join(modules)?, &mut found);
        let (values, folder) = (found.values, folder.as_ref());
        adapters.layout(&values)?.write(folder, |name| Ok::<_, ModelError>(values[name].read()))?;
        Ok(write_adapter_config(folder, &self.adapter_config(adapters)?)?)
    }

    /// Returns the contents of the exported `adapter_config.json`. Adapters that were opened from a folder keep the
    /// contents of that folder's file, except for the path of the base model.
    fn adapter_config(&self, adapters: &Adapters) -> Result<Value, ModelError> {
        // A new model has no folder that PEFT could load, so its adapters name no base model.
        let base = self.folder().map(|_| std::path::absolute(self.home()).unwrap_or_else(|_| self.home().into()));
        if let Some(folder) = adapters.lora.folder() {
            let mut config = folder.config()?.clone();
            config["base_model_name_or_path"] = base.as_deref().map(Path::to_string_lossy).into();
            return Ok(config);
        }
        let parameters = self.parameters();
        let linear: Vec<_> = parameters.iter().filter(|parameter| parameter.is_linear).collect();
        let is_transposed = linear.iter().any(|parameter| !parameter.transposed);
        let of = |is_selected: bool| {
            let names = linear.iter().map(|parameter| parameter.name.as_str());
            let names = names.filter(move |name| adapters.selects(name) == is_selected);
            names.map(|name| adapters.naming.module_of(name)).collect::<Vec<_>>()
        };
        Ok(adapters.lora.config.write(base.as_deref(), &targets(of(true), &of(false)), is_transposed))
    }
}

/// Returns the `target_modules` of the adapter configuration, by which PEFT finds the `adapted` modules: the last
/// segments of their names, such as `q_proj`, without duplicates. If a segment would also match one of the modules
/// `others`, returns the adapted modules' full names instead.
fn targets(adapted: Vec<String>, others: &[String]) -> Vec<String> {
    let ends_like = |name: &str, module: &String| module.ends_with(&format!(".{name}"));
    let last = adapted.iter().filter_map(|module| module.rsplit('.').next()).collect::<BTreeSet<_>>();
    match last.iter().any(|name| others.iter().any(|module| ends_like(name, module))) {
        true => adapted,
        false => last.into_iter().map(str::to_owned).collect(),
    }
}

impl Adapters {
    /// Returns the layout of the exported weights file: tensor names, dtypes and shapes. Adapters opened from a folder
    /// keep that folder's layout, and `values` is ignored. New adapters have the names and shapes of `values`, in f32.
    fn layout(&self, values: &StoredValues) -> Result<Layout, ModelError> {
        Ok(match self.lora.folder() {
            Some(folder) => folder.layout()?,
            None => Layout::adapter(values.iter().map(|(name, value)| new_tensor(name, &value.shape)))?,
        })
    }
}

/// A visitor that collects the matrices of a model's adapters, by their tensor names in PEFT's files.
struct Factors<'a> {
    adapters: &'a Adapters,
    position: Position,
    /// The name, on the Hugging Face hub, of the weight that was visited last. burn visits an adapter directly after
    /// its weight.
    weight: String,
    values: StoredValues,
}

impl ModuleVisitor for Factors<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.position.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.position.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.position.is_in_adapter() {
            self.weight = self.position.tensor(&self.adapters.naming).name;
            return;
        }
        let [a, b] = self.adapters.factors(&self.weight);
        let name = if self.position.path().ends_with(".a") { a } else { b };
        let mut shape = param.lazy_shape().to_vec();
        shape.reverse();
        self.values.insert(name, StoredValue::of(param, &shape, true));
    }
}

#[cfg(test)]
mod tests {
    use super::targets;

    #[test]
    fn targets_are_short_names_unless_these_select_other_modules() {
        let names = |layers: &[usize], of: &[&str]| {
            let each =
                layers.iter().flat_map(|layer| of.iter().map(move |name| format!("model.layers.{layer}.{name}")));
            each.collect::<Vec<_>>()
        };
        let (adapted, others) = (names(&[0, 1], &["q_proj", "v_proj"]), names(&[0, 1], &["mlp.up_proj", "kq_proj"]));
        assert_eq!(targets(adapted, &others), ["q_proj", "v_proj"]);
        let (adapted, others) = (names(&[1], &["q_proj"]), names(&[0], &["q_proj"]));
        assert_eq!(targets(adapted, &others), ["model.layers.1.q_proj"]);
        // GPT-2's attention and feed-forward part both have a `c_proj`.
        let (adapted, others) = (names(&[0], &["attn.c_proj"]), names(&[0], &["mlp.c_proj"]));
        assert_eq!(targets(adapted, &others), ["model.layers.0.attn.c_proj"]);
    }
}
