//! Copies trained parameters to memory that the calling thread allocates, so that the memory is near the thread's cores
//! and memory measurements count it for that thread.
//!
//! Without the copy, an optimizer that works in place would keep the parameters in memory that measurements count for
//! the thread of the pipeline's caller.

use burn::module::Module;

use crate::device::location::is_host;
use stageline_nn::params::{AnyTensor, map_floats, unify};

/// Replaces a module's trained parameters in the host's memory by copies that the calling thread allocates. The copies
/// are near the thread's cores, and memory measurements count them for this thread.
pub(crate) fn settle<M: Module>(module: M) -> M {
    unify(map_floats(module, |param| {
        let value = param.value().unranked();
        if !param.is_trained() || !is_host(&value.device()) {
            return None;
        }
        // The product of a shared tensor by 1 is a new tensor with the same bits.
        Some(AnyTensor::new(value.inner().mul_scalar(1.0)).leaf(true))
    }))
}
