//! Where a resumed training takes the values of frozen parameters from ([`FrozenFrom`]), and the hashes by which it
//! finds that they are the same as before.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use stageline_checkpoint::FrozenTensor;
use stageline_nn::params::{Description, read_each};

use crate::state::convert::tensor_of;

/// Where a resumed training takes the values of frozen parameters from. It decides whether checkpoints hold them.
///
/// The frozen parameters of a model that is adapted with LoRA are almost the whole model. A checkpoint without them is
/// smaller, and takes less host memory and time. Only a run's first checkpoint and a resume read and hash all frozen
/// parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrozenFrom {
    /// A resumed training takes frozen parameters from the checkpoint, which holds the whole model.
    #[default]
    Checkpoint,
    /// A resumed training takes frozen parameters of two or more dimensions and more than 8,192 elements from the stages
    /// with which its pipeline is built, as they were read from a file, for example. A checkpoint holds their SHA-256, and
    /// `build` returns an error if they have changed. In the checkpoint are other tensors, such as running statistics, and
    /// frozen parameters with other values than those of the stages, which were trained before they were frozen.
    ///
    /// A tensor that changes in a forward and has more elements, such as a codebook with running averages, must not be in
    /// such a model: later checkpoints would not have its changes.
    Model,
}

/// The largest number of elements of a tensor that every checkpoint holds.
const MOST_HELD: usize = 1 << 13;

/// Whether checkpoints may hold the hash of a tensor in place of its values: it is not trained, large, and no running
/// statistic of a norm, which has one dimension.
pub(crate) fn is_left_out(tensor: &Description) -> bool {
    !tensor.trained && tensor.shape.len() > 1 && tensor.shape.iter().product::<usize>() > MOST_HELD
}

/// Returns the hashes of the tensors of a module that `is_hashed` selects. The tensors are read to the host one by one.
pub(crate) fn hashes<M: Module>(
    module: &M,
    is_hashed: impl Fn(&Description) -> bool,
) -> HashMap<ParamId, FrozenTensor> {
    let hash = |tensor: Description, read: &dyn Fn() -> _| {
        is_hashed(&tensor).then(|| (tensor.id, FrozenTensor::of(&tensor_of(read()))))
    };
    read_each(module, hash).into_iter().flatten().collect()
}
