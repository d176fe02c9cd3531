//! Copies trained parameters to memory that the calling thread allocates, so that the memory is near the thread's cores
//! and memory measurements count it for that thread.
//!
//! Without the copy, an optimizer that works in place would keep the parameters in memory that measurements count for
//! the thread of the pipeline's caller.

use burn::module::Module;

use crate::device::location::{is_cuda, is_host};
use stageline_nn::params::{AnyTensor, map_floats, unify};

/// Replaces a module's trained parameters in the host's memory by copies that the calling thread allocates. The copies
/// are near the thread's cores, and memory measurements count them for this thread.
///
/// Parameters on a CUDA device are copied too. burn pads the rows of a matrix that comes from the host, and a kernel
/// writes its result without padding. burn tunes a matrix product for each such layout. Without the copy, the first
/// step of a resumed training could use another kernel than an uninterrupted training, and round differently.
pub(crate) fn settle<M: Module>(module: M) -> M {
    unify(map_floats(module, |param| {
        let value = param.value().unranked();
        if !param.is_trained() || !(is_host(&value.device()) || is_cuda(&value.device())) {
            return None;
        }
        // The product of a shared tensor by 1 is a new tensor with the same bits.
        Some(AnyTensor::new(value.inner().mul_scalar(1.0)).leaf(true))
    }))
}
