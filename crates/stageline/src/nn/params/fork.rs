//! A module on another device, where quantized parameters stay quantized.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

use crate::nn::params::any_tensor::AnyTensor;
use crate::nn::params::shared::with_value;

/// Whether a tensor is stored in a few bits, as the frozen weights of QLoRA are. Who computes with it decides the precision.
pub(crate) fn is_quantized<const D: usize>(tensor: &Tensor<D>) -> bool {
    matches!(tensor.dtype(), DType::QFloat(_))
}

/// The module with a graph of its own on a device, as [`Module::fork`]; but burn 0.22 dequantizes what it detaches, so quantized
/// parameters, which are frozen and part of no graph, are moved as they are.
pub(crate) fn fork<M: Module>(module: M, device: &Device) -> M {
    let mut quantized = Quantized { device, values: HashMap::new() };
    module.visit(&mut quantized);
    let forked = module.fork(device);
    if quantized.values.is_empty() { forked } else { forked.map(&mut quantized) }
}

struct Quantized<'a> {
    device: &'a Device,
    values: HashMap<ParamId, AnyTensor>,
}

impl ModuleVisitor for Quantized<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if is_quantized(&value) {
            self.values.insert(param.id, AnyTensor::new(value.to_device(self.device)));
        }
    }
}

impl ModuleMapper for Quantized<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.values.get(&param.id) {
            Some(value) => with_value(param, value.clone().tensor::<D>()),
            None => param,
        }
    }
}
