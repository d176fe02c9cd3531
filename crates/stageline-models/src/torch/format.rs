//! PyTorch's tensor names and layouts for the parameters of a user-defined model ([`TorchFormat`]).

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use stageline::{LossStage, Modules, Row, Stage};
use stageline_hub::{Layout, check_weights};

use crate::error::ModelError;
use crate::export::{new_tensor, write_new};
use crate::parameters::{HubTensor, Storage, check, parameters_of, values_of};

/// PyTorch's tensor names and layouts for the parameters of a user-defined model.
///
/// A parameter's tensor name is made in three steps:
///
/// 1. It starts as the parameter's path in the model: the layer's name in the [`Row`], and then the fields of its
///    structs, such as `blocks.3.norm.gamma`. Enum variants, and the batch norm inside an `AccumulatedBatchNorm`, add
///    nothing.
/// 2. PyTorch's name for the parameter replaces the last segment of the path, as in the table below.
/// 3. The replacements of [`rename`](Self::rename) are made.
///
/// The name of the struct that contains the parameter selects the row of the table. Do not name your own struct
/// `Linear` if its weights have another layout:
///
/// | struct of burn or Stageline | PyTorch |
/// | --- | --- |
/// | `Linear`: `weight` `[inputs, outputs]` (not burn's `LinearLayout::Col`) | `weight` `[outputs, inputs]`, so it is transposed |
/// | norms (`LayerNorm`, `RmsNorm`, `GroupNorm`, `BatchNorm`, `InstanceNorm`): `gamma`, `beta` | `weight`, `bias`; in files that have no such tensors, also `gamma`, `beta` |
/// | `PRelu`: `alpha` | `weight` |
/// | all others, such as embeddings and convolutions | the same |
///
/// Each parameter is stored as one tensor. If PyTorch stores several matrices in one tensor, the model must also have
/// one parameter for that tensor. An example is the `in_proj_weight` of PyTorch's attention, which has the weights of
/// queries, keys and values. A model's integer and boolean tensors are not stored.
///
/// ```no_run,standalone_crate
/// # use stageline::{LossStage, Pipeline, Row, Stage};
/// use stageline_models::{TorchFormat, TorchWeights};
///
/// # fn load<F: Stage, B: Stage<Input = F::Output, Output = F::Output>, L: LossStage<Input = F::Output>>(
/// #     row: Row<F, B, L>,
/// #     train: fn(&Row<F, B, L>) -> Pipeline<F::Input, L::Output, L::Target>,
/// # ) -> Result<(), stageline::BoxError> {
/// let format = TorchFormat::new().rename("blocks", "encoder.layer").rename("up", "intermediate.dense");
/// let weights = TorchWeights::open("bert", format)?.draw(|name| name.starts_with("classifier."));
/// let row = weights.load(row)?;
/// let pipeline = train(&row);
/// weights.export(&row, pipeline.into_modules(), "tuned")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct TorchFormat {
    renames: Vec<Rename>,
}

/// The type names of burn's norm modules, as burn passes them to a visitor. PyTorch's names for their parameters
/// `gamma` and `beta` are `weight` and `bias`.
const NORMS: [&str; 5] =
    ["Struct:LayerNorm", "Struct:RmsNorm", "Struct:GroupNorm", "Struct:BatchNorm", "Struct:InstanceNorm"];

/// A function that maps a tensor name to a new name.
type Rename = Arc<dyn Fn(&str) -> String + Send + Sync>;

impl TorchFormat {
    /// Creates a format without replacements. A parameter's tensor name is its path in the model, except that the last
    /// segment is PyTorch's name, such as `weight`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces `from` by `to` wherever it occurs in tensor names. `from` and `to` are one or more segments of a dotted
    /// name, such as `layer.up`, and `from` matches whole segments only: `up` matches in `layer.up.weight` but not in
    /// `layer.gate_up.weight`. An empty `to` removes the segments. Replacements are made in the order in which they are
    /// added, each on the result of the previous one.
    #[must_use]
    pub fn rename(self, from: &str, to: &str) -> Self {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.rename_with(move |name| replace_parts(name, &from, &to))
    }

    /// Adds a function that changes tensor names: `rename` takes a name and returns the new one. The function is called
    /// after the replacements that were added earlier.
    #[must_use]
    pub fn rename_with(mut self, rename: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.renames.push(Arc::new(rename));
        self
    }

    /// Checks, before training, that a model that was not loaded from PyTorch can be exported to `folder`. As a test,
    /// this method creates a file in `folder`, and a missing `folder` itself, and then removes what it has created.
    ///
    /// # Errors
    /// Returns the errors of [`export`](Self::export).
    pub fn check_export<F, B, L>(&self, row: &Row<F, B, L>, folder: impl AsRef<Path>) -> Result<(), ModelError>
    where
        F: Stage,
        B: Stage<Input = F::Output, Output = F::Output>,
        L: LossStage<Input = F::Output>,
    {
        let parameters = parameters_of(row, self);
        check(&parameters)?;
        let names: HashMap<_, _> = parameters.iter().map(|found| (&found.name, &found.shape)).collect();
        let layout = Layout::single(names.into_iter().map(|(name, shape)| new_tensor(name, shape)))?;
        Ok(check_weights(&layout, folder)?)
    }

    /// Writes the parameters of a model that was not loaded from PyTorch to `model.safetensors` in a folder, in f32.
    /// `modules` are the modules of a pipeline of `row`. Adapters, such as LoRA's, are merged into the weights that
    /// they adapt. Parameters are copied to host memory one after another. In PyTorch,
    /// `safetensors.torch.load_model(model, "folder/model.safetensors")` loads the file.
    ///
    /// # Errors
    /// - [`ModelError::Modules`] if a module is missing or has the wrong type.
    /// - [`ModelError::SameName`] if two parameters have the same tensor name, [`ModelError::TiedNames`] if a tied
    ///   parameter has two, or [`ModelError::Quantised`] if a parameter is quantised.
    /// - [`ModelError::Folder`] if the file cannot be written, or the folder has other weights.
    pub fn export<F, B, L>(
        &self,
        row: &Row<F, B, L>,
        modules: Modules,
        folder: impl AsRef<Path>,
    ) -> Result<(), ModelError>
    where
        F: Stage,
        B: Stage<Input = F::Output, Output = F::Output>,
        L: LossStage<Input = F::Output>,
    {
        write_new(&values_of(row, modules, self, None)?, folder.as_ref())
    }
}

/// Replaces the segments `from` of the dotted name `name` by the segments `to`, wherever they occur.
fn replace_parts(name: &str, from: &str, to: &str) -> String {
    let split = |text: &'_ str| text.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let (name, from, to) = (split(name), split(from), split(to));
    let (mut rest, mut replaced) = (name.as_slice(), Vec::with_capacity(name.len()));
    while !rest.is_empty() {
        let found = rest.strip_prefix(from.as_slice()).filter(|_| !from.is_empty());
        let (part, others) = found.map_or_else(|| rest.split_at(1), |others| (to.as_slice(), others));
        replaced.extend_from_slice(part);
        rest = others;
    }
    replaced.join(".")
}

impl Storage for TorchFormat {
    fn tensor(&self, path: &str, container: &str) -> HubTensor {
        let (module, parameter) = path.rsplit_once('.').map_or(("", path), |(module, name)| (module, name));
        let stored = match parameter {
            "gamma" if NORMS.contains(&container) => "weight",
            "beta" if NORMS.contains(&container) => "bias",
            "alpha" if container == "Struct:PRelu" => "weight",
            other => other,
        };
        let name = if module.is_empty() { stored.to_owned() } else { format!("{module}.{stored}") };
        let name = self.renames.iter().fold(name, |name, rename| rename(&name));
        HubTensor { name, transposed: container == "Struct:Linear" && parameter == "weight" }
    }
}

impl fmt::Debug for TorchFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TorchFormat").field("renames", &self.renames.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_parts_of_names_are_replaced_in_order() {
        let format = TorchFormat::new()
            .rename("embeddings.tokens", "embeddings.word_embeddings")
            .rename("embeddings", "bert.embeddings")
            .rename("blocks", "bert.encoder.layer")
            .rename("layer.mha", "attention.self")
            .rename("head", "");
        for (path, container, name, transposed) in [
            ("embeddings.tokens.weight", "Struct:Embedding", "bert.embeddings.word_embeddings.weight", false),
            ("embeddings.norm.gamma", "Struct:LayerNorm", "bert.embeddings.norm.weight", false),
            ("embeddings.norm.beta", "Struct:LayerNorm", "bert.embeddings.norm.bias", false),
            (
                "blocks.11.layer.mha.query.weight",
                "Struct:Linear",
                "bert.encoder.layer.11.attention.self.query.weight",
                true,
            ),
            (
                "blocks.11.layer.mha.query.bias",
                "Struct:Linear",
                "bert.encoder.layer.11.attention.self.query.bias",
                false,
            ),
            ("head.pooler.weight", "Struct:Linear", "pooler.weight", true),
            ("head.overhead.weight", "Struct:Conv2d", "overhead.weight", false),
            ("head.slope.alpha", "Struct:PRelu", "slope.weight", false),
            ("head.gamma", "Struct:Head", "gamma", false),
        ] {
            let expected = HubTensor { name: name.to_owned(), transposed };
            assert_eq!(format.tensor(path, container), expected, "{path}");
        }
        let shifted = TorchFormat::new().rename_with(|name| name.replace("blocks.0.", "1."));
        assert_eq!(shifted.tensor("blocks.0.scale", "Struct:Scale").name, "1.scale");
    }
}
