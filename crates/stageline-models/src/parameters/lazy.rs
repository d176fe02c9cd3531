//! Parameters whose values are read from a model folder when they are first used.

use std::sync::Arc;

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use stageline_hub::{FolderError, ModelFolder, TensorView};
use stageline_nn::params::is_trained;

use crate::parameters::{HubTensor, transposed};

/// Returns a new trainable parameter of the given shape in f32. Its value is read from `tensor` in the model folder on
/// first use. The caller must have checked that the folder has this tensor in a supported dtype; otherwise the first
/// use panics.
pub fn parameter_of<const D: usize>(
    folder: Arc<ModelFolder>,
    tensor: HubTensor,
    shape: [usize; D],
    device: Device,
) -> Param<Tensor<D>> {
    read_from(ParamId::new(), folder, tensor, DType::F32, device, true, shape.into())
}

/// Returns a copy of `param` with the dtype `dtype`, whose value is read from `tensor` in the model folder on first
/// use. The copy has the same id, shape and device, and is frozen if `param` is. The caller must have checked that the
/// folder has this tensor in a supported dtype; otherwise the first use panics.
pub fn read_lazily<const D: usize>(
    param: &Param<Tensor<D>>,
    folder: Arc<ModelFolder>,
    tensor: HubTensor,
    dtype: DType,
) -> Param<Tensor<D>> {
    read_from(param.id, folder, tensor, dtype, param.lazy_device(), is_trained(param), param.lazy_shape())
}

fn read_from<const D: usize>(
    id: ParamId,
    folder: Arc<ModelFolder>,
    tensor: HubTensor,
    dtype: DType,
    device: Device,
    is_trained: bool,
    shape: Shape,
) -> Param<Tensor<D>> {
    let init = move |device: &Device, is_trained: bool| {
        let read = read(&folder, &tensor).expect("the folder was checked when it was opened");
        Tensor::<D>::from_data(read.convert_dtype(dtype), (device, dtype)).set_require_grad(is_trained)
    };
    let param = Param::uninitialized(id, init, device, is_trained, shape);
    // The load mapper casts values that burn later loads into this parameter to the same dtype. It also reveals the
    // dtype before the parameter is read.
    if dtype == DType::F32 { param } else { param.load_mapper(move |value| value.cast(dtype)) }
}

/// Reads a parameter's values as f32 from its tensor in the model folder, and transposes them if the tensor is stored
/// transposed.
fn read(folder: &ModelFolder, tensor: &HubTensor) -> Result<TensorData, FolderError> {
    let view: TensorView = folder.tensor(&tensor.name)?;
    let (numbers, shape) = (view.to_f32()?, view.shape.to_vec());
    // Releases the tensor's memory-mapped pages. Otherwise the pages of all tensors read so far would stay in memory,
    // up to the size of the model.
    folder.release(&tensor.name);
    Ok(match (tensor.transposed, shape.as_slice()) {
        (true, &[rows, columns]) => TensorData::new(transposed(&numbers, rows, columns), [columns, rows]),
        _ => TensorData::new(numbers, Shape::from(shape)),
    })
}
