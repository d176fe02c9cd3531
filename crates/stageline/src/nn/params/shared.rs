//! Parameters that a module has several times.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, ParameterValue};
use burn::tensor::Tensor;

use crate::nn::params::any_tensor::AnyTensor;

/// One tensor for every parameter that a module has several times, as plain modules do not keep it: each of them would be
/// trained by itself.
pub(crate) fn unify<M: Module>(module: M) -> M {
    let mut count = Count::default();
    module.visit(&mut count);
    if count.repeated { module.map(&mut Unify::default()) } else { module }
}

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

pub(crate) fn is_trained<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    param.val().is_require_grad()
}

/// A parameter with another value.
pub(crate) fn with_value<T: ParameterValue>(param: Param<T>, value: T) -> Param<T> {
    let (id, _, mapper) = param.consume();
    Param::from_mapped_value(id, value, mapper)
}
