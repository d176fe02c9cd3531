//! Keeps each parameter that a module uses several times (a tied parameter) a single tensor.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, ParameterValue};
use burn::tensor::Tensor;

use crate::params::any_tensor::AnyTensor;

/// Returns the module with one common tensor for all uses of each trained parameter that the module uses several times.
///
/// burn's mapping of a module gives every use of such a parameter a tensor of its own, and each tensor would then be
/// trained separately.
pub fn unify<M: Module>(module: M) -> M {
    let mut count = Count::default();
    module.visit(&mut count);
    if count.repeated { module.map(&mut Unify::default()) } else { module }
}

/// A visitor that finds out whether a module uses a trained parameter more than once.
#[derive(Default)]
struct Count {
    seen: HashSet<ParamId>,
    repeated: bool,
}

impl ModuleVisitor for Count {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.repeated |= is_trained(param) && !self.seen.insert(param.id);
    }
}

/// A mapper that replaces every later use of a trained parameter by the tensor of its first use in the module.
#[derive(Default)]
struct Unify {
    first: HashMap<ParamId, AnyTensor>,
}

impl ModuleMapper for Unify {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !is_trained(&param) {
            return param;
        }
        match self.first.get(&param.id) {
            Some(first) => with_value(param, first.clone().tensor::<D>()),
            None => {
                self.first.insert(param.id, AnyTensor::new(param.val()));
                param
            }
        }
    }
}

/// Whether a parameter is trained: it gets gradients and is not frozen.
pub fn is_trained<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    param.val().is_require_grad()
}

/// Returns the parameter `param` with `value` in place of its value. The id of the parameter stays the same, and so do
/// the functions that burn applies to the value when the parameter is loaded or saved.
pub fn with_value<T: ParameterValue>(param: Param<T>, value: T) -> Param<T> {
    let (id, _, mapper) = param.consume();
    Param::from_mapped_value(id, value, mapper)
}
