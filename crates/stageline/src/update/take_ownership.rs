//! Copies trained parameters to memory that the calling thread allocates, so that the memory is near the thread's cores
//! and memory measurements count it for that thread.
//!
//! Without the copy, an optimizer that works in place would keep the parameters in memory that measurements count for
//! the thread of the pipeline's caller.

use burn::module::Module;

use crate::device::location::is_host;
use stageline_nn::params::{AnyTensor, map_floats, unify};

/// Returns the module with copies in place of those trained parameters that are in the host's memory. The calling
/// thread allocates the copies, so that they are near its cores and memory measurements count them for that thread.
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
