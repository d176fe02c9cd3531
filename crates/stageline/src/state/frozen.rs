//! The source of frozen parameters' values in a resumed training run ([`FrozenFrom`]), and the hashes that show whether
//! these values have changed.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use burn::tensor::{DType, TensorData};
use stageline_checkpoint::FrozenTensor;
use stageline_nn::params::{Description, read_each};

use crate::state::convert::tensor_of;

/// The source of frozen parameters' values when a training run resumes: the checkpoint, or the newly built model.
/// Decides whether checkpoints hold these values.
///
/// In LoRA fine-tuning, almost all parameters are frozen. A checkpoint without them is smaller, and takes less host
/// memory and time. Only a run's first checkpoint and a resume read and hash all frozen parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrozenFrom {
    /// A resumed training run takes frozen parameters from the checkpoint, which holds the whole model.
    #[default]
    Checkpoint,
    /// A resumed training run keeps the large frozen parameters (two or more dimensions and more than 8,192 elements)
    /// of the stages that its pipeline is built from, which may have read them from a model file. A checkpoint holds
    /// only their SHA-256 hashes, and `build` returns an error if a hash differs. The checkpoint holds the values of
    /// all other tensors, such as running statistics. It also holds the values of large frozen parameters that were
    /// trained before they were frozen, because these values differ from those in the stages.
    ///
    /// A model with this setting must not have a large tensor that a forward pass changes, such as a codebook with
    /// running averages. Later checkpoints would not contain its changes.
    Model,
}

/// The size limit, in elements, up to which checkpoints always store a frozen tensor's values. Larger tensors may be
/// stored as hashes only.
const MOST_HELD: usize = 1 << 13;

/// Whether checkpoints may store a tensor's hash instead of its values: true for frozen tensors with two or more
/// dimensions and more than [`MOST_HELD`] elements. A norm's running statistics have one dimension, so their values are
/// always stored.
pub(crate) fn is_left_out(tensor: &Description) -> bool {
    !tensor.trained && FrozenFrom::Model.leaves_out(&tensor.shape)
}

impl FrozenFrom {
    /// Whether, with this setting, checkpoints hold only the hash of a frozen parameter of this shape, and not its
    /// values.
    pub fn leaves_out(self, shape: &[usize]) -> bool {
        self == Self::Model && shape.len() > 1 && shape.iter().product::<usize>() > MOST_HELD
    }
}

/// Returns the dtype in which checkpoints store or hash a tensor. It is the tensor's own dtype, except f32 for large
/// bf16 or f16 frozen parameters if resumed runs take them from the model (`from`), so that a run can resume in another
/// precision.
pub(crate) fn dtype_in_checkpoint(tensor: &Description, from: FrozenFrom) -> DType {
    let is_widened = from == FrozenFrom::Model && is_left_out(tensor) && is_narrow(tensor.dtype);
    if is_widened { DType::F32 } else { tensor.dtype }
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// Returns the hashes of the module's tensors that `is_hashed` selects. Tensors in bf16 or f16 are hashed as f32, and
/// only one tensor at a time is copied to the host.
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
