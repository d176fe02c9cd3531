//! A folder with a PyTorch model's weights, from which a user-defined model is loaded ([`TorchWeights`]).

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use stageline::{LossStage, Modules, Row, Stage};
use stageline_hub::{Layout, ModelFolder, check_export};

use crate::error::ModelError;
use crate::export::{new_tensor, write_copy};
use crate::model::ReadLazily;
use crate::parameters::{
    HubTensor, Selection, Storage, StoredParameter, Unknown, check, is_float, no_tensors, parameters_of, unknown,
    values_of,
};
use crate::torch::format::TorchFormat;

/// An opened folder with a PyTorch model's weights, to load them into a user-defined model.
///
/// Parameters and tensors must correspond one to one, so that nothing is missed by mistake. The caller selects the
/// exceptions: [`draw`](Self::draw) for parameters without a tensor, [`keep`](Self::keep) and
/// [`leave_out`](Self::leave_out) for tensors without a parameter.
#[derive(Clone)]
pub struct TorchWeights {
    names: InFolder,
    drawn: Selection,
    kept: Selection,
    left_out: Selection,
}

/// Combines two selections, so that repeated calls of a method such as [`TorchWeights::draw`] accumulate.
fn either(first: Selection, second: impl Fn(&str) -> bool + Send + Sync + 'static) -> Selection {
    Arc::new(move |name| first(name) || second(name))
}

/// Finds each parameter's tensor in a folder of PyTorch weights: by the name that `format` gives or, if the folder
/// lacks it, by TensorFlow's name (`gamma` and `beta` of norms).
#[derive(Clone)]
struct InFolder {
    format: TorchFormat,
    folder: Arc<ModelFolder>,
}

impl Storage for InFolder {
    fn tensor(&self, path: &str, container: &str) -> HubTensor {
        let usual = self.format.tensor(path, container);
        // The first BERT models on the Hugging Face hub still have TensorFlow's `gamma` and `beta` for their norms.
        let unconverted = || self.format.tensor(path, "");
        let has = |tensor: &HubTensor| self.folder.has(&tensor.name);
        if has(&usual) { usual } else { Some(unconverted()).filter(has).unwrap_or(usual) }
    }
}

impl TorchWeights {
    /// Opens a folder with a PyTorch model's weights: `model.safetensors`, or the shards that
    /// `model.safetensors.index.json` lists. A `config.json` is not needed. `format` gives the tensor names of the
    /// parameters. No parameter is read yet.
    ///
    /// In PyTorch, `safetensors.torch.save_model(model, "folder/model.safetensors")` writes such a file.
    ///
    /// # Errors
    /// Returns [`ModelError::Folder`] if a file cannot be read or is invalid.
    pub fn open(folder: impl AsRef<Path>, format: TorchFormat) -> Result<Self, ModelError> {
        let names = InFolder { format, folder: Arc::new(ModelFolder::open(folder)?) };
        Ok(Self { names, drawn: no_tensors(), kept: no_tensors(), left_out: no_tensors() })
    }

    /// Selects parameters that are not read from the folder but keep their layers' random initial values, such as a new
    /// head. The folder may have tensors of these names, in any shape. `is_drawn` takes the name of a parameter's
    /// tensor.
    #[must_use]
    pub fn draw(self, is_drawn: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { drawn: either(self.drawn, is_drawn), ..self }
    }

    /// Selects tensors of the folder that belong to the PyTorch model but not to this model, such as a batch norm's
    /// `num_batches_tracked`. Exports copy them. `is_kept` takes the name of a tensor.
    #[must_use]
    pub fn keep(self, is_kept: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { kept: either(self.kept, is_kept), ..self }
    }

    /// Selects tensors of the folder that this model does not have, such as another task's head. Exports do not contain
    /// them. `is_left_out` takes the name of a tensor. To replace a parameter's values in the folder by new ones, use
    /// [`draw`](Self::draw) instead.
    #[must_use]
    pub fn leave_out(self, is_left_out: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { left_out: either(self.left_out, is_left_out), ..self }
    }

    /// Returns `row` with the folder's weights as its initial parameter values. All names and shapes are checked
    /// immediately. Each stage reads its own parameters as f32 when a pipeline is built, so the whole model is never in
    /// memory. Frozen parameters stay frozen.
    ///
    /// The names of the row's layers are part of the tensor names, so call [`Row::names`] first.
    ///
    /// # Errors
    /// - [`ModelError::NotStored`] if the folder lacks a parameter's tensor, or has it in a different shape.
    /// - [`ModelError::Type`] if a tensor has a dtype other than F32, F16 and BF16.
    /// - [`ModelError::NoParameter`] if the folder has a tensor that corresponds to no parameter.
    /// - [`ModelError::LeftOut`] if a parameter needs a tensor that is left out.
    /// - [`ModelError::SameName`] if two parameters have the same tensor name, or [`ModelError::TiedNames`] if a tied
    ///   parameter has two.
    /// - [`ModelError::Quantised`] if a parameter is quantised. To quantise the loaded weights, call [`Row::mapped`] on
    ///   the returned row.
    pub fn load<F, B, L>(&self, row: Row<F, B, L>) -> Result<Row<F, B, L>, ModelError>
    where
        F: Stage,
        B: Stage<Input = F::Output, Output = F::Output>,
        L: LossStage<Input = F::Output>,
    {
        let parameters = parameters_of(&row, &self.names);
        // Loading would replace a quantised weight by f32 values, even if an adapter is attached to the weight.
        if let Some(quantised) = parameters.iter().find(|parameter| parameter.quantised) {
            return Err(ModelError::Quantised { parameter: quantised.path.clone() });
        }
        self.check(&parameters)?;
        let Self { names, drawn, .. } = self.clone();
        let folder = Some(Arc::clone(&names.folder));
        Ok(row.mapped(move || ReadLazily::new(names.clone(), folder.clone(), Arc::clone(&drawn), no_tensors())))
    }

    /// Checks, before training, that the trained model can be exported to `folder`. As a test, this method creates a
    /// file in `folder`, and a missing `folder` itself, and then removes what it has created.
    ///
    /// # Errors
    /// - The errors of [`load`](Self::load) if the parameters of `row` do not match the folder's tensors.
    /// - [`ModelError::Folder`] if the folder cannot be written, is the one from which the weights were read, or has
    ///   weights or files of another model.
    pub fn check_export<F, B, L>(&self, row: &Row<F, B, L>, folder: impl AsRef<Path>) -> Result<(), ModelError>
    where
        F: Stage,
        B: Stage<Input = F::Output, Output = F::Output>,
        L: LossStage<Input = F::Output>,
    {
        let parameters = parameters_of(row, &self.names);
        self.check(&parameters)?;
        let layout = self.layout(parameters.iter().map(|found| (found.name.as_str(), found.shape.as_slice())))?;
        Ok(check_export(&layout, self.names.folder.path(), folder)?)
    }

    /// Writes a pipeline's parameters to a folder. The files, names, shapes and dtypes are those of the folder from
    /// which the parameters were read, and its `config.json` and tokenizer are copied. `row` is the row that
    /// [`load`](Self::load) returned, and `modules` are the modules of a pipeline of this row. Drawn parameters that
    /// the folder lacks, or has in a different shape, are written in F32. Adapters, such as LoRA's, are merged into the
    /// weights that they adapt. Parameters are copied to host memory one after another.
    ///
    /// # Errors
    /// - [`ModelError::Modules`] if a module is missing or has the wrong type.
    /// - The errors of [`load`](Self::load) if `row` is not the row that it returned.
    /// - [`ModelError::Folder`] as for [`check_export`](Self::check_export), or if a value does not fit its dtype.
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
        self.check(&parameters_of(row, &self.names))?;
        let values = values_of(row, modules, &self.names, None)?;
        let layout = self.layout(values.iter().map(|(name, value)| (name.as_str(), value.shape.as_slice())))?;
        write_copy(&layout, &self.names.folder, |name| values.get(name), folder.as_ref())
    }

    /// Checks that the parameters and the folder's tensors correspond one to one, except for drawn parameters and for
    /// tensors that are kept or left out.
    fn check(&self, parameters: &[StoredParameter]) -> Result<(), ModelError> {
        check(parameters)?;
        for parameter in parameters.iter().filter(|parameter| !(self.drawn)(&parameter.name)) {
            if (self.left_out)(&parameter.name) {
                let (parameter, name) = (parameter.path.clone(), parameter.name.clone());
                return Err(ModelError::LeftOut { parameter, name });
            }
            parameter.check(&self.names.folder).map_err(|error| match error {
                ModelError::Folder(cause) => {
                    ModelError::NotStored { parameter: parameter.path.clone(), cause: cause.into() }
                }
                other => other,
            })?;
        }
        let needed: HashSet<_> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let is_known = |name: &str| needed.contains(name) || (self.kept)(name) || (self.left_out)(name);
        match unknown(&self.names.folder, is_known) {
            Some(Unknown { path, name, more }) => Err(ModelError::NoParameter { path, name, more }),
            None => Ok(()),
        }
    }

    /// Returns the layout (files, tensor names, dtypes and shapes) of an export. It is the folder's layout without the
    /// tensors that are left out. A drawn parameter gets an F32 tensor if the folder has no tensor for it, or one of
    /// another shape or an unsupported dtype. `parameters` has the name and the shape of each parameter's tensor.
    fn layout<'a>(&self, parameters: impl Iterator<Item = (&'a str, &'a [usize])>) -> Result<Layout, ModelError> {
        let parameters: HashMap<_, _> = parameters.collect();
        let is_left_out = |name: &str| (self.left_out)(name) && !parameters.contains_key(name);
        let layout = self.names.folder.layout()?.without(is_left_out);
        let fits = |name: &str, shape: &[usize]| {
            self.names.folder.tensor(name).is_ok_and(|found| found.shape == shape && is_float(found.dtype))
        };
        let mut new = parameters.iter().filter(|(name, shape)| !fits(name, shape));
        Ok(new.try_fold(layout, |layout, (name, shape)| layout.with(new_tensor(name, shape)))?)
    }
}

impl fmt::Debug for TorchWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TorchWeights").field("format", &self.names.format).field("folder", &self.names.folder).finish()
    }
}
