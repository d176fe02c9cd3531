//! Copies modules with their constants, but without the memory of their tensors.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Int, Tensor};

/// Replaces every tensor of a module by a one-element placeholder, which frees the tensors' memory, and returns the
/// module. The placeholder is NaN for floats, 0 for integers and `false` for booleans.
///
/// Constants, such as sizes and padding ids, keep their values. So functions of the module that use only constants can
/// be called without keeping the parameters in memory. A function that reads a float parameter gets NaN.
///
/// The module must not share running statistics with another module. burn replaces them in place, so the other module
/// would lose them too.
pub fn hollow<M: Module>(module: M) -> M {
    module.map(&mut Hollow)
}

struct Hollow;

impl ModuleMapper for Hollow {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let device = param.val().device();
        Param::initialized(param.id, Tensor::full([1; D], f32::NAN, &device))
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let device = param.val().device();
        Param::initialized(param.id, Tensor::zeros([1; D], &device))
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let device = param.val().device();
        Param::initialized(param.id, Tensor::<D, Int>::zeros([1; D], &device).equal_elem(1))
    }
}
