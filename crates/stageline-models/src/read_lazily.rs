//! Reads the parameters of a model from a folder when they are first used ([`ReadLazily`]).

use std::sync::Arc;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use stageline_hub::{FolderError, ModelFolder, TensorView};
use stageline_nn::params::is_trained;

use crate::lora::Adapters;
use crate::names::{HubTensor, Storage};
use crate::parameters::{Selection, transposed};
use crate::position::Position;

/// A mapper by which the parameters of new layers are read from a folder when they are first used. It reads no
/// parameter itself and draws none at random.
pub struct ReadLazily<S> {
    storage: S,
    position: Position,
    /// The folder from which parameters are read; `None` if all are drawn at random. The folder must have passed
    /// [`StoredParameter::check`]. Otherwise the first use of a parameter may panic.
    folder: Option<Arc<ModelFolder>>,
    /// Selects the parameters that are not read from the folder but drawn at random, by the names of their tensors.
    drawn: Selection,
    /// Selects the parameters that are frozen (not trained), by the names of their tensors.
    frozen: Selection,
    /// The adapters to add to linear layers. With adapters, all other parameters are frozen.
    adapters: Option<Adapters>,
}

impl<S> ReadLazily<S> {
    pub fn new(storage: S, folder: Option<Arc<ModelFolder>>, drawn: Selection, frozen: Selection) -> Self {
        Self { storage, position: Position::default(), folder, drawn, frozen, adapters: None }
    }

    /// Adds adapters to the linear layers that `adapters` selects, and freezes all other parameters.
    pub fn adapted(self, adapters: Option<Adapters>) -> Self {
        Self { adapters, ..self }
    }
}

impl<S: Storage> ModuleMapper for ReadLazily<S> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.position.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.position.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.position.is_in_adapter() {
            return param;
        }
        let tensor = self.position.tensor(&self.storage);
        let is_frozen = self.adapters.is_some() || (self.frozen)(&tensor.name);
        let name = tensor.name.clone();
        let param = match &self.folder {
            Some(folder) if !(self.drawn)(&tensor.name) => read_lazily(&param, Arc::clone(folder), tensor),
            _ => param,
        };
        let param = if is_frozen { param.set_require_grad(false) } else { param };
        match &self.adapters {
            Some(adapters) if self.position.is_linear_weight() => adapters.attach(&name, param),
            _ => param,
        }
    }
}

/// Returns a parameter of the given shape, which is trained if `is_trained`. Its value is read from `tensor` in the
/// model folder when it is first used.
pub fn parameter_of<const D: usize>(
    folder: Arc<ModelFolder>,
    tensor: HubTensor,
    shape: [usize; D],
    device: Device,
) -> Param<Tensor<D>> {
    read_from(ParamId::new(), folder, tensor, device, true, shape.into())
}

/// Returns a parameter with the id, the shape and the device of `param`, frozen if `param` is. Its value is read from
/// `tensor` in the model folder when it is first used.
fn read_lazily<const D: usize>(
    param: &Param<Tensor<D>>,
    folder: Arc<ModelFolder>,
    tensor: HubTensor,
) -> Param<Tensor<D>> {
    read_from(param.id, folder, tensor, param.lazy_device(), is_trained(param), param.lazy_shape())
}

fn read_from<const D: usize>(
    id: ParamId,
    folder: Arc<ModelFolder>,
    tensor: HubTensor,
    device: Device,
    is_trained: bool,
    shape: Shape,
) -> Param<Tensor<D>> {
    let init = move |device: &Device, is_trained: bool| {
        let read = read(&folder, &tensor).expect("the folder was checked when it was opened");
        Tensor::<D>::from_data(read, device).set_require_grad(is_trained)
    };
    Param::uninitialized(id, init, device, is_trained, shape)
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
