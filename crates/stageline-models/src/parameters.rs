//! The values of parameters: read from the tensors of a folder when they are first used, or drawn for a new model.

use std::sync::Arc;

use burn::module::{Initializer, Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use stageline::nn::{Embedding, Linear};
use stageline_hub::{Dtype, FolderError, ModelFolder, TensorInfo, TensorView};

use crate::error::ModelError;
use crate::names::{HubTensor, Naming, Place};

pub fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// Creates a linear layer `[inputs, outputs]`. Its weights are normal with the standard deviation `deviation`. If
/// `bias` is true, it has biases of 0; otherwise it has none.
pub fn linear([from, to]: [usize; 2], deviation: f64, bias: bool, device: &Device) -> Linear {
    let config = LinearConfig::new(from, to).with_bias(false).with_initializer(normal(deviation));
    let mut linear = Linear::from(config.init(device));
    linear.bias = bias.then(|| Initializer::Zeros.init([to], device));
    linear
}

/// Creates an embedding table `[vocabulary, width]` with normal values of the standard deviation `deviation`.
pub fn table([vocabulary, width]: [usize; 2], deviation: f64, device: &Device) -> Embedding {
    EmbeddingConfig::new(vocabulary, width).with_initializer(normal(deviation)).init(device).into()
}

/// Returns an embedding table whose row `row` has the initial values 0.
pub fn with_zero_row(mut table: Embedding, row: usize) -> Embedding {
    table.weight = table.weight.init_mapper(move |values| values.slice_fill(row..row + 1, 0.0));
    table
}

/// Reshapes activations from `[batch, length, width]` to `[batch x length, width]`.
pub fn rows(input: Tensor<3>) -> Tensor<2> {
    input.flatten(0, 1)
}

/// The state of a walk over the parameters of a layer: the path of the current parameter, the layer's place in the
/// model, and the names of the model's tensors.
struct Position<'a> {
    /// The path from the layer to the current parameter, with an entry for each field and enum variant on the path. A
    /// layer is an enum with one variant for each model family. The variant's name is not part of the parameter's name,
    /// so its entry is `None`.
    path: Vec<Option<String>>,
    place: Place,
    naming: &'a Naming,
}

impl<'a> Position<'a> {
    fn new(place: Place, naming: &'a Naming) -> Self {
        Self { path: Vec::new(), place, naming }
    }

    fn enter(&mut self, name: &str, container: &str) {
        self.path.push((!container.starts_with("Enum:")).then(|| name.to_owned()));
    }

    fn exit(&mut self) {
        self.path.pop();
    }

    /// Returns the name of the current parameter's tensor on the Hugging Face hub, and whether it is stored transposed.
    /// The current parameter is the one at which the visit of the model's parameters stands. Panics if the model family
    /// has no name for it.
    fn tensor(&self) -> HubTensor {
        let path = self.path.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(".");
        let Self { place, naming, .. } = self;
        naming.of(*place, &path).unwrap_or_else(|| panic!("the parameter `{path}` of {place:?} has no name on the hub"))
    }
}

/// A parameter of a layer as the Hugging Face hub has it: the name and the shape of its tensor, and its values.
pub struct HubParameter {
    pub name: String,
    /// The shape of a parameter's tensor on the Hugging Face hub.
    pub shape: Vec<usize>,
    read: Box<dyn Fn() -> Vec<f32>>,
}

impl HubParameter {
    /// Copies the values of the parameter from its device to the host's memory. Returns them in the order in which its
    /// tensor is stored on the Hugging Face hub. A parameter that was never used is first read from the model folder
    /// or, in a new model, drawn at random.
    pub fn read(&self) -> Vec<f32> {
        (self.read)()
    }

    /// Checks that a model folder has the parameter's tensor, in the right shape and in a type that can be read (F32,
    /// F16 or BF16).
    ///
    /// # Errors
    /// Returns an error if the tensor is missing, or has another shape or type.
    pub fn check(&self, folder: &ModelFolder) -> Result<(), ModelError> {
        let dtype = folder.expect(&self.name, &self.shape)?.dtype;
        if matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Ok(());
        }
        let file = folder.tensors().find(|(name, _)| *name == self.name).map(|(_, info)| &info.file);
        let path = folder.path().join(file.map_or("", String::as_str));
        Err(ModelError::Type { path, name: self.name.clone(), dtype: format!("{dtype:?}") })
    }
}

/// Returns the parameters of a layer, each with the name and the shape of its tensor on the Hugging Face hub. The call
/// itself reads no parameter from a folder and draws none at random. `place` says which layer of the model this is: the
/// embeddings, a block or the head.
pub fn hub_parameters<M: Module>(layer: &M, place: Place, naming: &Naming) -> Vec<HubParameter> {
    let mut visit = HubParameters { position: Position::new(place, naming), found: Vec::new() };
    layer.visit(&mut visit);
    visit.found
}

struct HubParameters<'a> {
    position: Position<'a>,
    found: Vec<HubParameter>,
}

impl ModuleVisitor for HubParameters<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.position.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.position.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let HubTensor { name, transposed: is_transposed } = self.position.tensor();
        let (mut shape, param) = (param.lazy_shape().to_vec(), param.clone());
        let read: Box<dyn Fn() -> Vec<f32>> = match (is_transposed, shape.as_slice()) {
            (true, &[rows, columns]) => Box::new(move || transposed(&numbers(&param.val()), rows, columns)),
            _ => Box::new(move || numbers(&param.val())),
        };
        if is_transposed {
            shape.reverse();
        }
        self.found.push(HubParameter { name, shape, read });
    }
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    let data = tensor.to_data();
    data.as_slice::<f32>().map_or_else(|_| data.iter::<f32>().collect(), <[f32]>::to_vec)
}

/// The settings with which the parameters of a model's layers are prepared: the folder to read them from, and the
/// choice of frozen ones.
pub struct Preparation<'a> {
    /// The folder from which parameters are read when they are first used; `None` if they are drawn at random. The
    /// folder must have passed [`HubParameter::check`]. Otherwise the first use of a parameter may panic.
    pub folder: Option<&'a Arc<ModelFolder>>,
    /// A function that returns true if a parameter is frozen (not trained). Its argument is the name of the parameter's
    /// tensor on the Hugging Face hub.
    pub frozen: &'a dyn Fn(&str) -> bool,
}

impl Preparation<'_> {
    /// Prepares a layer of the model: excludes its frozen parameters from training. If these settings name a folder,
    /// the parameters will be read from it when they are first used. The call itself reads no parameter and draws none
    /// at random. `place` says which layer of the model this is.
    pub fn of_layer<M: Module>(&self, layer: M, place: Place, naming: &Naming) -> M {
        layer.map(&mut Prepare { position: Position::new(place, naming), preparation: self })
    }
}

struct Prepare<'a> {
    position: Position<'a>,
    preparation: &'a Preparation<'a>,
}

impl ModuleMapper for Prepare<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.position.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.position.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let tensor = self.position.tensor();
        let is_frozen = (self.preparation.frozen)(&tensor.name);
        let param = match self.preparation.folder {
            Some(folder) => read_lazily(&param, Arc::clone(folder), tensor),
            None => param,
        };
        if is_frozen { param.set_require_grad(false) } else { param }
    }
}

/// Returns a parameter with the id, the shape and the device of `param`. Its value is read from `tensor` in the model
/// folder when it is first used.
fn read_lazily<const D: usize>(
    param: &Param<Tensor<D>>,
    folder: Arc<ModelFolder>,
    tensor: HubTensor,
) -> Param<Tensor<D>> {
    let init = move |device: &Device, is_trained: bool| {
        let read = read(&folder, &tensor).expect("the folder was checked when it was opened");
        Tensor::<D>::from_data(read, device).set_require_grad(is_trained)
    };
    Param::uninitialized(param.id, init, param.lazy_device(), true, param.lazy_shape())
}

/// Reads the values of a parameter as f32 from its tensor in the model folder. Transposes them if the tensor is stored
/// transposed.
fn read(folder: &ModelFolder, tensor: &HubTensor) -> Result<TensorData, FolderError> {
    let view: TensorView = folder.tensor(&tensor.name)?;
    let (numbers, shape) = (view.to_f32()?, view.shape.to_vec());
    // The file is mapped into memory, and the memory of all tensors that were read would add up to that of the model.
    folder.release(&tensor.name);
    Ok(match (tensor.transposed, shape.as_slice()) {
        (true, &[rows, columns]) => TensorData::new(transposed(&numbers, rows, columns), [columns, rows]),
        _ => TensorData::new(numbers, Shape::from(shape)),
    })
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

/// Returns the tensors of a model folder that the model does not use, each with its name, type, shape and file. Tensors
/// in `needed` are left out. So are buffers, such as causal masks, and a tied head's second copy of the table of token
/// embeddings.
pub fn unexpected<'a>(
    folder: &'a ModelFolder,
    needed: &std::collections::HashSet<String>,
    naming: &Naming,
) -> Vec<(&'a str, &'a TensorInfo)> {
    folder.tensors().filter(|(name, _)| !needed.contains(*name) && !naming.is_spare(name)).collect()
}
