//! Keeps each tied parameter, which a module uses several times, a single tensor.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};

use crate::params::any_tensor::AnyTensor;
use crate::params::visit::{map_floats, visit_floats};

/// Returns the module with a single tensor for each tied parameter: a trainable parameter that the module uses several
/// times.
///
/// burn's mapping of a module gives every use of a tied parameter a separate tensor. These tensors would then be
/// trained separately.
pub fn unify<M: Module>(module: M) -> M {
    let (mut seen, mut repeated) = (HashSet::new(), false);
    visit_floats(&module, |param| repeated |= param.is_trained() && !seen.insert(param.id()));
    if !repeated {
        return module;
    }
    let mut first: HashMap<ParamId, AnyTensor> = HashMap::new();
    map_floats(module, |param| {
        if !param.is_trained() {
            return None;
        }
        let first_use = first.get(&param.id()).cloned();
        if first_use.is_none() {
            first.insert(param.id(), param.value());
        }
        first_use
    })
}
