//! The parameters of a model as tensors of a folder in the format of the Hugging Face hub: a list of them
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

/// A function that selects tensors by their names in the files.
pub type Selection = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Returns a selection of no tensors.
pub fn no_tensors() -> Selection {
    Arc::new(|_| false)
}

/// A parameter of a model, with the name and the shape of the tensor that stores it.
pub struct StoredParameter {
    pub id: ParamId,
    /// The path of a parameter in the model, such as `blocks.3.linear.weight`.
    pub path: String,
    /// The name of a parameter's tensor on the Hugging Face hub.
    pub name: String,
    /// The shape of a parameter's tensor on the Hugging Face hub.
    pub shape: Vec<usize>,
    /// Whether the parameter is a matrix that is stored transposed.
    pub transposed: bool,
    /// Whether the parameter is the weight of a linear layer, which an adapter can adapt.
    pub is_linear: bool,
    /// Whether the parameter is stored on its device in a quantised type, as the frozen weights of QLoRA are.
    pub quantised: bool,
    /// Whether the parameter has an adapter, such as LoRA's. An export adds the adapter to the parameter, and the sum
    /// is not quantised.
    adapted: bool,
}

impl StoredParameter {
    /// Checks that a model folder has the parameter's tensor, in the right shape and in a type that can be read (F32,
    /// F16 or BF16).
    ///
    /// # Errors
    /// Returns an error if the tensor is missing, or has another shape or type.
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

/// Whether tensors of the element type `dtype` can store parameters: F32, F16 and BF16 can.
pub fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// A visitor that collects the parameters of a model, each with the name and the shape of its tensor on the Hugging
/// Face hub. It reads no parameter from a folder and draws none at random. A parameter that the model uses twice is in
/// the list twice. Adapters, such as LoRA's, are left out.
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
        // burn visits an adapter directly after its parameter.
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

/// Returns the parameters of new layers of `row`, from the first layer to the last, each with the name and the
/// shape of its tensor. No value is read or drawn.
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

/// The parameters of a model with their values, by the names of their tensors on the Hugging Face hub.
pub type StoredValues = HashMap<String, StoredValue>;

/// A function that copies the values of a parameter, with an adapter added, to the host's memory.
type Read = Box<dyn Fn(Option<&LoraAdapter>) -> Vec<f32>>;

/// The values of a parameter, and the shape of its tensor on the Hugging Face hub.
pub struct StoredValue {
    pub shape: Vec<usize>,
    /// The function that copies the values to the host's memory, in the order of the stored tensor.
    read: Read,
    adapter: Option<LoraAdapter>,
}

impl StoredValue {
    /// Creates the values of a parameter. `shape` is the shape of its tensor on the Hugging Face hub. `is_transposed`
    /// says whether this tensor is the transpose of the parameter.
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

    /// Copies the values of the parameter from its device to the host's memory. Returns them in the order in which its
    /// tensor is stored on the Hugging Face hub. A parameter that was never used is first read from the model folder
    /// or, in a new model, drawn at random.
    pub fn read(&self) -> Vec<f32> {
        (self.read)(self.adapter.as_ref())
    }
}

/// Returns the trained parameters of a pipeline of `row`, for an export. `modules` are the modules of its stages.
/// Adapters are added to the weights that they adapt:
///
/// - With a `scale`, the adapters are LoRA's. The product of an adapter's matrices is multiplied by `scale` and added
///   when the weight is read, so only one sum exists at a time.
/// - Without a `scale`, all adapters are added now, so all sums exist at the same time.
///
/// # Errors
/// Returns [`ModelError`] if a module is missing or of another type, or as [`check`] does.
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

/// A visitor that collects the parameters of a model with their values.
struct Values<'a, S> {
    parameters: StoredParameters<'a, S>,
    values: StoredValues,
    /// The scale of LoRA adapters, whose matrices are visited directly after their weight. `None` if all adapters have
    /// already been added to the weights.
    scale: Option<f64>,
    /// The first matrix, `[inputs, rank]`, of an adapter, until its second matrix is visited; `None` otherwise.
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

/// The tensors of a folder that store no parameter of a model: the first of them, and the number of the others.
pub struct Unknown {
    /// The path of the weights file with the first tensor that stores no parameter.
    pub path: PathBuf,
    /// The name of the first tensor that stores no parameter.
    pub name: String,
    /// The number of further tensors that store no parameter.
    pub more: usize,
}

/// Returns the first tensor of a folder for whose name `is_known` returns false, with the number of further such
/// tensors. Returns `None` if there are none.
pub fn unknown(folder: &ModelFolder, is_known: impl Fn(&str) -> bool) -> Option<Unknown> {
    let mut unknown = folder.tensors().filter(|(name, _)| !is_known(name));
    let (name, info) = unknown.next()?;
    Some(Unknown { path: folder.path().join(&info.file), name: name.to_owned(), more: unknown.count() })
}

/// Checks that the parameters of a model can be stored. A parameter must not be quantised, unless an adapter is added
/// to it. Two parameters must not have the same tensor name, and a tied parameter must have one name.
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

/// Returns the transpose of `matrix`, which has `rows` rows and `columns` columns in row-major order. The values are
/// copied tile by tile, so that both matrices stay in the processor's cache.
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
