//! Copies trained parameters to memory that the calling thread allocates, so that the memory is near the thread's cores
//! and counts as the thread's own.
//!
//! Without the copy, an optimizer that works in place would keep the parameters in memory that counts as that of the
//! pipeline's caller.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use crate::device::location::is_host;
use stageline_nn::params::shared::{is_trained, unify, with_value};

/// Returns the module with copies in place of those trained parameters that are in the host's memory. The calling
/// thread allocates the copies, so that they are near its cores and count as its memory.
pub(crate) fn settle<M: Module>(module: M) -> M {
    unify(module.map(&mut Settle))
}

struct Settle;

impl ModuleMapper for Settle {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.val();
        if !is_trained(&param) || !is_host(&value.device()) {
            return param;
        }
        // The product of a shared tensor by 1 is a new tensor with the same bits.
        let own = value.clone().inner().mul_scalar(1.0);
        with_value(param, own.autodiff().require_grad())
    }
}
