//! Copies trained parameters to memory that the calling thread allocates, so that the memory is near the thread's cores
//! and memory measurements count it for that thread.
//!
//! Without the copy, an in-place optimizer would keep the parameters in memory that the caller's thread has allocated.

use burn::module::Module;

use crate::device::location::{is_cuda, is_host};
use stageline_nn::params::{AnyTensor, map_floats, unify};

/// Replaces a module's trained parameters in host memory by copies that the calling thread allocates.
///
/// Parameters on a CUDA device are copied too, so that a resumed training run computes the same bits as an
/// uninterrupted one. burn pads the rows of a matrix that is copied from the host, while a kernel writes its result
/// without padding. burn tunes matrix products separately for each of these layouts. Without the copy, the first step
/// of a resumed run could use a different kernel and round differently.
pub(crate) fn settle<M: Module>(module: M) -> M {
    unify(map_floats(module, |param| {
        let value = param.value().unranked();
        if !param.is_trained() || !(is_host(&value.device()) || is_cuda(&value.device())) {
            return None;
        }
        // Multiplying a shared tensor by 1 gives a new tensor with the same bits.
        Some(AnyTensor::new(value.inner().mul_scalar(1.0)).leaf(true))
    }))
}
