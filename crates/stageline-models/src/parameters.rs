//! The values of parameters: read from the tensors of a folder when they are first used, or drawn for a new model.

use std::sync::Arc;

use burn::module::{Initializer, Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use stageline::nn::{Embedding, Linear};
use stageline_hub::{Dtype, FolderError, ModelFolder, TensorInfo, TensorView};

use crate::error::ModelError;
use crate::names::{HubTensor, Naming, Place};

/// Returns an initializer that draws from the normal distribution with mean 0 and the standard deviation `std`.
pub fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// Creates a linear layer `[inputs, outputs]` with normal weights of the standard deviation `deviation`, and with
/// biases of 0 if `bias` is true.
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

/// Reshapes activations from `[batch, length, width]` to `[batch x length, width]`.
pub fn rows(input: Tensor<3>) -> Tensor<2> {
    input.flatten(0, 1)
}

/// The path of the visited parameter in its layer, such as `mlp.up.weight`. A layer is an enum with one variant for
/// each model family, and the name of the variant is not part of the path.
#[derive(Default)]
pub struct Path(Vec<Option<String>>);

impl Path {
    pub fn enter(&mut self, name: &str, container: &str) {
        self.0.push((!container.starts_with("Enum:")).then(|| name.to_owned()));
    }

    pub fn exit(&mut self) {
        self.0.pop();
    }

    pub fn joined(&self) -> String {
        self.0.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(".")
    }
}

/// The tensor that a model folder must have for one parameter: its name and its shape.
pub struct Expected {
    pub name: String,
    /// The shape that a parameter's tensor must have on the Hugging Face hub.
    pub shape: Vec<usize>,
}

impl Expected {
    /// Checks that a model folder has the expected tensor of a parameter, in the expected shape and with elements of a
    /// type that can be read (F32, F16 or BF16).
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

/// Returns the tensors that a model folder must have for the parameters of a layer, without reading or drawing a
/// parameter. `place` is the place of the layer in the model.
pub fn expected<M: Module>(layer: &M, place: Place, naming: &Naming) -> Vec<Expected> {
    let mut visit = ExpectedOf { path: Path::default(), place, naming, found: Vec::new() };
    layer.visit(&mut visit);
    visit.found
}

struct ExpectedOf<'a> {
    path: Path,
    place: Place,
    naming: &'a Naming,
    found: Vec<Expected>,
}

impl ModuleVisitor for ExpectedOf<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let HubTensor { name, transposed } = tensor_of(self.naming, self.place, &self.path.joined());
        let mut shape = param.lazy_shape().to_vec();
        if transposed {
            shape.reverse();
        }
        self.found.push(Expected { name, shape });
    }
}

/// Returns the name of a parameter's tensor on the Hugging Face hub, and whether the tensor is stored transposed. The
/// parameter has the path `path` in the layer at `place`.
///
/// # Panics
/// Panics if the model family does not name the parameter's tensor.
pub fn tensor_of(naming: &Naming, place: Place, path: &str) -> HubTensor {
    naming.of(place, path).unwrap_or_else(|| panic!("the parameter `{path}` of {place:?} has no name on the hub"))
}

/// Returns a layer of the model, changed so that its parameters are read from the model folder when they are first
/// used. The folder must have passed [`Expected::check`], or the first use may panic.
pub fn read_lazily<M: Module>(layer: M, place: Place, naming: &Naming, folder: &Arc<ModelFolder>) -> M {
    layer.map(&mut ReadLazily { path: Path::default(), place, naming, folder })
}

struct ReadLazily<'a> {
    path: Path,
    place: Place,
    naming: &'a Naming,
    folder: &'a Arc<ModelFolder>,
}

impl ModuleMapper for ReadLazily<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (folder, tensor) = (Arc::clone(self.folder), tensor_of(self.naming, self.place, &self.path.joined()));
        let shape = param.lazy_shape();
        let init = move |device: &Device, is_trained: bool| {
            let read = read(&folder, &tensor).expect("the folder was checked when it was opened");
            Tensor::<D>::from_data(read, device).set_require_grad(is_trained)
        };
        Param::uninitialized(param.id, init, param.lazy_device(), true, shape)
    }
}

/// Reads the values of a parameter from its tensor in the model folder as f32, and transposes them if the tensor is
/// stored transposed.
fn read(folder: &ModelFolder, tensor: &HubTensor) -> Result<TensorData, FolderError> {
    let view: TensorView = folder.tensor(&tensor.name)?;
    let (numbers, shape) = (view.to_f32()?, view.shape.to_vec());
    // The pages of all tensors together would take as much memory as the model.
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

/// Returns the tensors of a model folder that the model does not need, each with its name, and with its element type,
/// shape and file. These are all tensors except those in `needed`, the names of the tensors of parameters, and known
/// buffers and copies.
pub fn unexpected<'a>(
    folder: &'a ModelFolder,
    needed: &std::collections::HashSet<String>,
    naming: &Naming,
) -> Vec<(&'a str, &'a TensorInfo)> {
    folder.tensors().filter(|(name, _)| !needed.contains(*name) && !naming.is_spare(name)).collect()
}
