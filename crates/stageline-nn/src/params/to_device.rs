//! Moves a module to another device and keeps quantized parameters quantized.

use std::collections::HashMap;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};

use crate::params::any_tensor::AnyTensor;
use crate::params::visit::{map_floats, visit_floats};

/// Whether a tensor is stored in a quantized format, like the frozen weights of QLoRA. A layer with a quantized weight
/// chooses its own compute precision, so mixed precision leaves the weight unchanged.
pub fn is_quantized<const D: usize>(tensor: &Tensor<D>) -> bool {
    matches!(tensor.dtype(), DType::QFloat(_))
}

/// Moves a module to `device` and gives it an autodiff graph of its own, as [`Module::fork`] does, but keeps quantized
/// parameters quantized.
///
/// burn 0.22 dequantizes the parameters that it detaches. Quantized parameters are frozen and part of no graph, so this
/// function moves them without detaching.
pub fn fork<M: Module>(module: M, device: &Device) -> M {
    let mut quantized = HashMap::new();
    visit_floats(&module, |param| {
        let value = param.value().unranked();
        if is_quantized(&value) {
            quantized.insert(param.id(), AnyTensor::new(value.to_device(device)));
        }
    });
    let forked = module.fork(device);
    if quantized.is_empty() { forked } else { map_floats(forked, |param| quantized.get(&param.id()).cloned()) }
}
