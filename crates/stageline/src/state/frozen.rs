//! The source of the values of frozen parameters in a resumed training ([`FrozenFrom`]), and the hashes that show
//! whether these values have changed.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use burn::tensor::{DType, TensorData};
use stageline_checkpoint::FrozenTensor;
use stageline_nn::params::{Description, read_each};

use crate::state::convert::tensor_of;

/// The source of the values of frozen parameters in a resumed training. This setting decides whether checkpoints hold
/// these values.
///
/// The frozen parameters of a model that is adapted with LoRA are almost the whole model. A checkpoint without them is
/// smaller, and takes less host memory and time. Only a run's first checkpoint and a resume read and hash all frozen
/// parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrozenFrom {
    /// A resumed training takes frozen parameters from the checkpoint, which holds the whole model.
    #[default]
    Checkpoint,
    /// A resumed training takes large frozen parameters (two or more dimensions and more than 8,192 elements) from the
    /// stages with which its pipeline is built. The stages may have read them from a file. A checkpoint holds their
    /// SHA-256 hashes, and `build` returns an error if a hash differs. The checkpoint holds the values of all other
    /// tensors, such as running statistics. It also holds the values of frozen parameters that differ from those in the
    /// stages because they were trained before they were frozen.
    ///
    /// A model with this setting must not have a large tensor that a forward pass changes, such as a codebook with
    /// running averages. Later checkpoints would not contain its changes.
    Model,
}

/// The largest number of elements of a frozen tensor whose values every checkpoint holds.
const MOST_HELD: usize = 1 << 13;

/// Whether checkpoints may hold the hash of a tensor in place of its values. This holds for tensors that are not
/// trained, have two or more dimensions and have more than [`MOST_HELD`] elements. The running statistics of a norm
/// have one dimension, so checkpoints always hold them.
pub(crate) fn is_left_out(tensor: &Description) -> bool {
    !tensor.trained && FrozenFrom::Model.leaves_out(&tensor.shape)
}

impl FrozenFrom {
    /// Whether checkpoints leave out the values of a frozen parameter of this shape, and hold their hash.
    pub fn leaves_out(self, shape: &[usize]) -> bool {
        self == Self::Model && shape.len() > 1 && shape.iter().product::<usize>() > MOST_HELD
    }
}

/// Returns the type in which checkpoints store or hash a tensor: f32 for large frozen parameters in bf16 or f16 that are
/// taken from the model, and otherwise the type of the tensor. So a training may resume in another precision, in which
/// the model keeps these parameters in another type.
pub(crate) fn dtype_in_checkpoint(tensor: &Description, from: FrozenFrom) -> DType {
    let is_widened = from == FrozenFrom::Model && is_left_out(tensor) && is_narrow(tensor.dtype);
    if is_widened { DType::F32 } else { tensor.dtype }
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// Returns the hashes of the tensors of a module that `is_hashed` selects. Those in bf16 or f16 are hashed as f32. The
/// tensors are read to the host one by one.
pub(crate) fn hashes<M: Module>(
    module: &M,
    is_hashed: impl Fn(&Description) -> bool,
) -> HashMap<ParamId, FrozenTensor> {
    let hash = |tensor: Description, read: &dyn Fn() -> TensorData| {
        let widened = |data: TensorData| if is_narrow(data.dtype()) { data.convert::<f32>() } else { data };
        is_hashed(&tensor).then(|| (tensor.id, FrozenTensor::of(&tensor_of(widened(read())))))
    };
    read_each(module, hash).into_iter().flatten().collect()
}
