//! A model's parameters as tensors of a model folder in the format of the Hugging Face hub: a list of them
//! ([`parameters_of`]), and their values for an export ([`values_of`]).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use burn::module::{LoraAdapter, Module, ModuleVisitor, Param, ParamId, Reparameterization};
use burn::tensor::Tensor;
use stageline::{LossStage, Modules, Row, Stage};
use stageline_hub::{Dtype, ModelFolder};
use stageline_nn::params::is_quantized;

use crate::error::ModelError;
use crate::parameters::{ADAPTER, HubTensor, Position, Storage};

/// A predicate that selects tensors by their names in the weights files: it returns true for a selected name.
pub type Selection = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Returns a selection that contains no tensor.
pub fn no_tensors() -> Selection {
    Arc::new(|_| false)
}

/// A parameter of a model, with the name and the shape of the tensor that stores it.
pub struct StoredParameter {
    pub id: ParamId,
    /// The parameter's path in the model, such as `blocks.3.linear.weight`.
    pub path: String,
    /// The name of the parameter's tensor on the Hugging Face hub.
    pub name: String,
    /// The shape of the parameter's tensor on the Hugging Face hub.
    pub shape: Vec<usize>,
    /// Whether the parameter is a matrix that is stored transposed.
    pub transposed: bool,
    /// Whether the parameter is a linear layer's weight, which can have a LoRA adapter.
    pub is_linear: bool,
    /// Whether the parameter is quantised on its device, as the frozen weights of QLoRA are.
    pub quantised: bool,
    /// Whether an adapter, such as LoRA's, is attached to the parameter. An export merges the adapter, and the exported
    /// values are then not quantised.
    adapted: bool,
}

impl StoredParameter {
    /// Checks that a model folder has the parameter's tensor, in the right shape and in a supported dtype (F32, F16 or
    /// BF16).
    ///
    /// # Errors
    /// Returns an error if the tensor is missing, or has a different shape or dtype.
    pub fn check(&self, folder: &ModelFolder) -> Result<(), ModelError> {
        let dtype = folder.expect(&self.name, &self.shape)?.dtype;
        if is_float(dtype) {
            return Ok(());
        }
        let file = folder.tensors().find(|(name, _)| *name == self.name).map(|(_, info)| &info.file);
        let path = folder.path().join(file.map_or("", String::as_str));
        Err(ModelError::Type { path, name: self.name.clone(), dtype: format!("{dtype:?}") })
    }
}

/// Whether tensors of this dtype can store parameters: F32, F16 and BF16 can.
pub fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// A visitor that lists a model's parameters with their tensors' names and shapes on the Hugging Face hub, without
/// reading or initialising them. A parameter used twice is listed twice. Adapters, such as LoRA's, are left out.
struct StoredParameters<'a, S> {
    storage: &'a S,
    position: Position,
    found: Vec<StoredParameter>,
}

impl<'a, S> StoredParameters<'a, S> {
    fn of(storage: &'a S) -> Self {
        Self { storage, position: Position::default(), found: Vec::new() }
    }
}

impl<S: Storage> ModuleVisitor for StoredParameters<'_, S> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.position.enter(name, container);
        // burn visits an adapter directly after the parameter that it adapts.
        if let Some(adapted) = self.found.last_mut().filter(|_| container == ADAPTER) {
            adapted.adapted = true;
        }
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.position.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.position.is_in_adapter() {
            return;
        }
        let HubTensor { name, transposed } = self.position.tensor(self.storage);
        let (id, path, mut shape) = (param.id, self.position.path(), param.lazy_shape().to_vec());
        let transposed = transposed && D == 2;
        if transposed {
            shape.reverse();
        }
        let quantised = param.is_initialized() && is_quantized(&param.val());
        let is_linear = self.position.is_linear_weight();
        self.found.push(StoredParameter { id, path, name, shape, transposed, is_linear, quantised, adapted: false });
    }
}

/// Returns the parameters of new layers of `row`, from the first layer to the last, each with the name and the shape of
/// its tensor. Reads or initialises no values.
pub fn parameters_of<F, B, L>(row: &Row<F, B, L>, storage: &impl Storage) -> Vec<StoredParameter>
where
    F: Stage,
    B: Stage<Input = F::Output, Output = F::Output>,
    L: LossStage<Input = F::Output>,
{
    let mut visit = StoredParameters::of(storage);
    row.visit_new(&mut visit);
    visit.found
}

/// A model's parameter values, by the names of their tensors on the Hugging Face hub.
pub type StoredValues = HashMap<String, StoredValue>;

/// A function that copies a parameter's values to host memory. It first merges the given adapter, if any.
type Read = Box<dyn Fn(Option<&LoraAdapter>) -> Vec<f32>>;

/// A parameter's values, and the shape of its tensor on the Hugging Face hub.
pub struct StoredValue {
    pub shape: Vec<usize>,
    /// Copies the parameter's values to host memory, in the stored tensor's memory order.
    read: Read,
    adapter: Option<LoraAdapter>,
}

impl StoredValue {
    /// Wraps a parameter for an export. `shape` is the shape of its tensor on the Hugging Face hub. `is_transposed`
    /// says whether this tensor is the parameter's transpose.
    pub fn of<const D: usize>(param: &Param<Tensor<D>>, shape: &[usize], is_transposed: bool) -> Self {
        let param = param.clone();
        let value = move |adapter: Option<&LoraAdapter>| match adapter {
            Some(adapter) => numbers(&adapter.apply(param.val())),
            None => numbers(&param.val()),
        };
        let read: Read = match (is_transposed, shape) {
            (true, &[columns, rows]) => Box::new(move |adapter| transposed(&value(adapter), rows, columns)),
            _ => Box::new(value),
        };
        Self { shape: shape.to_vec(), read, adapter: None }
    }

    /// Copies the parameter's values from its device to host memory. Returns them in the order in which its tensor is
    /// stored on the Hugging Face hub. A parameter that was never used is first read from the model folder or, in a new
    /// model, initialised.
    pub fn read(&self) -> Vec<f32> {
        (self.read)(self.adapter.as_ref())
    }
}

/// Returns the trained parameters of a pipeline of `row`, for an export. `modules` are its stages' modules. Adapters
/// are merged into their weights:
///
/// - With a `scale`, for LoRA adapters: each weight is merged when it is read, so only one merged weight is in memory
///   at a time. Merging adds `scale` times the product of the adapter's matrices.
/// - Without a `scale`, for any adapters: all are merged immediately, so all merged weights are in memory at the same
///   time.
///
/// # Errors
/// Returns [`ModelError`] if a module is missing or has the wrong type, and the errors of [`check`].
pub fn values_of<F, B, L>(
    row: &Row<F, B, L>,
    modules: Modules,
    storage: &impl Storage,
    scale: Option<f64>,
) -> Result<StoredValues, ModelError>
where
    F: Stage,
    B: Stage<Input = F::Output, Output = F::Output>,
    L: LossStage<Input = F::Output>,
{
    let mut model = row.join(modules)?;
    if scale.is_none() {
        let (first, blocks, last) = model;
        model = (first.materialize(), blocks.into_iter().map(Module::materialize).collect(), last.materialize());
    }
    let mut visit = Values { parameters: StoredParameters::of(storage), values: HashMap::new(), scale, factor: None };
    row.visit(&model, &mut visit);
    check(&visit.parameters.found)?;
    Ok(visit.values)
}

/// A visitor that collects a model's parameters with their values.
struct Values<'a, S> {
    parameters: StoredParameters<'a, S>,
    values: StoredValues,
    /// Scale of the LoRA adapters to merge; `None` if all adapters have already been merged into the weights.
    scale: Option<f64>,
    /// An adapter's first matrix, `[inputs, rank]`, until its second matrix is visited; `None` otherwise.
    factor: Option<Param<Tensor<2>>>,
}

impl<S: Storage> ModuleVisitor for Values<'_, S> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.parameters.enter_module(name, container);
    }

    fn exit_module(&mut self, name: &str, container: &str) {
        self.parameters.exit_module(name, container);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.parameters.visit_float(param);
        let Some(StoredParameter { name, shape, transposed, .. }) = self.parameters.found.last() else { return };
        if !self.parameters.position.is_in_adapter() {
            self.values.insert(name.clone(), StoredValue::of(param, shape, *transposed));
            return;
        }
        let matrix = Param::initialized(param.id, param.val().flatten::<2>(0, D - 2));
        match (self.factor.take(), self.scale, self.values.get_mut(name)) {
            (Some(a), Some(scale), Some(value)) => value.adapter = Some(LoraAdapter { a, b: matrix, scale }),
            _ => self.factor = Some(matrix),
        }
    }
}

/// A folder's tensors that correspond to no parameter of a model: the first, and the number of others.
pub struct Unknown {
    /// The path of the weights file with the first tensor that corresponds to no parameter.
    pub path: PathBuf,
    /// The name of the first tensor that corresponds to no parameter.
    pub name: String,
    /// The number of tensors, in addition to the tensor `name`, that correspond to no parameter.
    pub more: usize,
}

/// Finds the tensors of a folder whose names `is_known` rejects. Returns the first of them and the number of the
/// others; `None` if there are none.
pub fn unknown(folder: &ModelFolder, is_known: impl Fn(&str) -> bool) -> Option<Unknown> {
    let mut unknown = folder.tensors().filter(|(name, _)| !is_known(name));
    let (name, info) = unknown.next()?;
    Some(Unknown { path: folder.path().join(&info.file), name: name.to_owned(), more: unknown.count() })
}

/// Checks that a model's parameters can be exported: none is quantised without an adapter to merge, no two share a
/// tensor name, and each tied parameter has only one name.
///
/// # Errors
/// Returns an error that names the first parameter, or pair of parameters, that breaks one of these rules.
pub fn check(parameters: &[StoredParameter]) -> Result<(), ModelError> {
    let (mut of_names, mut of_ids) = (HashMap::new(), HashMap::new());
    for parameter in parameters {
        if parameter.quantised && !parameter.adapted {
            return Err(ModelError::Quantised { parameter: parameter.path.clone() });
        }
        let first: &StoredParameter = of_names.entry(&parameter.name).or_insert(parameter);
        if first.id != parameter.id {
            let parameters = [first.path.clone(), parameter.path.clone()];
            return Err(ModelError::SameName { name: parameter.name.clone(), parameters });
        }
        let first: &StoredParameter = of_ids.entry(parameter.id).or_insert(parameter);
        if first.name != parameter.name {
            let parameters = [first.path.clone(), parameter.path.clone()];
            let names = [first.name.clone(), parameter.name.clone()];
            return Err(ModelError::TiedNames { parameters, names });
        }
    }
    Ok(())
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    let data = tensor.to_data();
    data.as_slice::<f32>().map_or_else(|_| data.iter::<f32>().collect(), <[f32]>::to_vec)
}

/// Returns the transpose of `matrix`, which has `rows` rows and `columns` columns in row-major order. Copies tile by
/// tile, so that a tile of both matrices fits into the CPU cache.
pub fn transposed(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const TILE: usize = 32;
    let mut turned = vec![0.0; matrix.len()];
    for first_row in (0..rows).step_by(TILE) {
        for first_column in (0..columns).step_by(TILE) {
            for row in first_row..(first_row + TILE).min(rows) {
                for column in first_column..(first_column + TILE).min(columns) {
                    turned[column * rows + row] = matrix[row * columns + column];
                }
            }
        }
    }
    turned
}
