//! Moves a module to another device and keeps quantized parameters quantized.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

use crate::params::any_tensor::AnyTensor;
use crate::params::shared::with_value;

/// Whether a tensor is stored in a quantized format, as the frozen weights of QLoRA are. A layer with a quantized
/// weight chooses the precision of its computation itself.
pub fn is_quantized<const D: usize>(tensor: &Tensor<D>) -> bool {
    matches!(tensor.dtype(), DType::QFloat(_))
}

/// Moves a module to `device`, with an autodiff graph of its own, as [`Module::fork`] does, but keeps quantized
/// parameters quantized.
///
/// burn 0.22 dequantizes the parameters that it detaches. Quantized parameters are frozen and part of no graph, so this
/// function moves them without detaching.
pub fn fork<M: Module>(module: M, device: &Device) -> M {
    let mut quantized = Quantized { device, values: HashMap::new() };
    module.visit(&mut quantized);
    let forked = module.fork(device);
    if quantized.values.is_empty() { forked } else { forked.map(&mut quantized) }
}

/// Copies the quantized parameters of a module to a device, while it visits the module; then puts the copies into the
/// moved module, while it maps that module.
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
