//! Visits the tensors of a module, trainable or not: describes, reads, writes and changes them.
//!
//! [`visit_floats`] and [`map_floats`] call a closure with each float parameter, whatever its rank. Only these tasks
//! need a new type that implements burn's `ModuleVisitor` or `ModuleMapper`:
//!
//! - changes of integers and booleans too: `hollow`, and `hand_over` in `stageline`;
//! - functions that need the rank of a parameter in its type: `fork` of burn's `Param` in `seed`, [`Sum::add`] in
//!   `sum`, and `copies` in `stageline`;
//! - visits of structs instead of tensors: `batch_norm`;
//! - visits in crates that do not depend on this crate.
//!
//! [`Sum::add`]: crate::Sum::add

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, ParameterValue};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};

use crate::params::any_tensor::AnyTensor;

/// The description of one tensor of a module: its id, path, dtype and shape, and whether it is trainable.
#[derive(Clone, Debug)]
pub struct Description {
    /// Id of the tensor in burn's module.
    pub id: ParamId,
    /// Path of the tensor in its module, such as `0.linear.weight`.
    pub path: String,
    /// Dtype in which the module stores the tensor.
    pub dtype: DType,
    /// Size of each dimension of the tensor.
    pub shape: Vec<usize>,
    /// Whether the tensor is a trainable parameter, which gets gradients.
    pub trained: bool,
}

/// Returns the descriptions (id, path, dtype, shape, and whether it is trainable) of all tensors of a module, in the
/// order of the module's fields. A tensor that the module uses twice is listed once. Lazy parameters are initialised.
pub fn describe<M: Module>(module: &M) -> Vec<Description> {
    read_each(module, |found, _| found)
}

/// Reads the values of all tensors of a module to host memory. Returns them with their ids, in the order of the
/// module's fields. A tensor that the module uses twice is returned once.
pub fn read<M: Module>(module: &M) -> Vec<(ParamId, TensorData)> {
    read_each(module, |found, read| (found.id, read()))
}

/// Calls `each` once for every tensor of a module, and returns the results in the order of the module's fields. `each`
/// takes the tensor's description and a closure that reads its values to host memory.
pub fn read_each<M: Module, T>(module: &M, each: impl FnMut(Description, Read) -> T) -> Vec<T> {
    let mut visitor = Visit { path: Vec::new(), seen: HashSet::new(), each, found: Vec::new() };
    module.visit(&mut visitor);
    visitor.found
}

/// Replaces the values of a module's tensors by those in `values`, found by tensor id, and returns the module. The
/// caller must give each tensor a value of its own shape, because the shapes are not compared here. A tensor whose id
/// is not in `values` keeps its value.
pub fn write<M: Module>(module: M, values: &HashMap<ParamId, TensorData>) -> M {
    module.map(&mut Write(values))
}

/// A float parameter of a module, or one of its running statistics (such as the mean of a batch norm). Its rank is not
/// part of its type, so that one closure can take parameters of all ranks.
pub trait FloatParameter {
    /// Returns the id that identifies the parameter in its burn module.
    fn id(&self) -> ParamId;
    /// Whether the parameter is trainable: it gets gradients and is not frozen. A lazy parameter stays lazy.
    fn is_trained(&self) -> bool;
    /// Returns the size of each dimension of the parameter, without initialising it.
    fn shape(&self) -> Vec<usize>;
    /// Returns the value of the parameter. If the parameter is lazy, the call initialises it.
    fn value(&self) -> AnyTensor;
    /// Returns a marker value: zeros with the parameter's rank, dtype and device, but with a different shape (at most
    /// two elements). If a caller writes it to a copy of the module and the original's shape changes too, the tensor is
    /// a running statistic, which copies share.
    fn of_other_shape(&self) -> AnyTensor;
    /// Returns the gradient of the parameter from `gradients`; `None` if `gradients` has no gradient for the parameter.
    fn gradient(&self, gradients: &GradientsParams) -> Option<AnyTensor>;
    /// Removes and returns the gradient of the parameter from `gradients`; `None` if `gradients` has no gradient for
    /// the parameter.
    fn take_gradient(&self, gradients: &mut GradientsParams) -> Option<AnyTensor>;
    /// Stores `gradient` in `gradients` as the gradient of the parameter. The tensor must have the parameter's rank,
    /// which is not checked.
    fn put_gradient(&self, gradients: &mut GradientsParams, gradient: AnyTensor);
}

impl<const D: usize> FloatParameter for Param<Tensor<D>> {
    fn id(&self) -> ParamId {
        self.id
    }

    fn is_trained(&self) -> bool {
        is_trained(self)
    }

    fn shape(&self) -> Vec<usize> {
        self.lazy_shape().to_vec()
    }

    fn value(&self) -> AnyTensor {
        AnyTensor::new(self.val())
    }

    fn of_other_shape(&self) -> AnyTensor {
        let mut shape = [1; D];
        shape[0] = if self.lazy_shape().num_elements() == 1 { 2 } else { 1 };
        let value = self.val();
        AnyTensor::new(Tensor::<D>::zeros(shape, (&value.device(), value.dtype())))
    }

    fn gradient(&self, gradients: &GradientsParams) -> Option<AnyTensor> {
        gradients.get::<D>(self.id).map(AnyTensor::new)
    }

    fn take_gradient(&self, gradients: &mut GradientsParams) -> Option<AnyTensor> {
        gradients.remove::<D>(self.id).map(AnyTensor::new)
    }

    fn put_gradient(&self, gradients: &mut GradientsParams, gradient: AnyTensor) {
        gradients.register(self.id, gradient.tensor::<D>());
    }
}

/// Calls `each` for every float parameter and running statistic (such as a batch norm's mean) of a module, in the order
/// of the module's fields. A parameter that the module uses twice is visited twice.
pub fn visit_floats<M: Module>(module: &M, each: impl FnMut(&dyn FloatParameter)) {
    module.visit(&mut VisitFloats(each));
}

/// Replaces the value of every float parameter and running statistic (such as a batch norm's mean) of a module by the
/// value that `change` returns for it, and returns the module. If `change` returns `None`, the parameter stays as it
/// is, lazy or not. A new value must have the rank of the old one, which is not checked.
pub fn map_floats<M: Module>(module: M, change: impl FnMut(&dyn FloatParameter) -> Option<AnyTensor>) -> M {
    module.map(&mut MapFloats(change))
}

/// Whether a parameter is trainable: it gets gradients and is not frozen. A lazy parameter stays lazy.
pub fn is_trained<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    if param.is_initialized() {
        return param.val().is_require_grad();
    }
    // burn has no function that tells whether a lazy parameter is trainable, but gives this setting to a value that is
    // loaded into it. So this loads a small tensor into a copy of the parameter.
    let loaded = Tensor::zeros([1; D], &param.lazy_device());
    param.clone().load_mapper(|value| value).transform_for_load(loaded, param.id).is_require_grad()
}

/// Returns the dtype of a parameter without initialising a lazy one. For a lazy parameter, this is the dtype to which
/// burn would convert a loaded value ([`Param::load_mapper`]), or f32 without such a conversion.
pub fn dtype_of<const D: usize>(param: &Param<Tensor<D>>) -> DType {
    if param.is_initialized() {
        return param.base().dtype();
    }
    let loaded = Tensor::zeros([1; D], (&param.lazy_device(), DType::F32));
    param.clone().transform_for_load(loaded, param.id).base().dtype()
}

/// Returns the parameter `param` with `value` as its new value. The parameter keeps its id, and the functions that burn
/// applies to the value when the parameter is loaded or saved.
pub fn with_value<T: ParameterValue>(param: Param<T>, value: T) -> Param<T> {
    let (id, _, mapper) = param.consume();
    Param::from_mapped_value(id, value, mapper)
}

/// A closure that reads one tensor's values to host memory.
type Read<'a> = &'a dyn Fn() -> TensorData;

struct Visit<T, F> {
    path: Vec<String>,
    /// Ids of the tensors visited so far, so that a tensor that the module uses twice is visited once.
    seen: HashSet<ParamId>,
    each: F,
    found: Vec<T>,
}

impl<T, F: FnMut(Description, Read) -> T> Visit<T, F> {
    fn add(&mut self, id: ParamId, dtype: DType, shape: Vec<usize>, trained: bool, read: Read) {
        if self.seen.insert(id) {
            let found = Description { id, path: self.path.join("."), dtype, shape, trained };
            self.found.push((self.each)(found, read));
        }
    }
}

impl<T, F: FnMut(Description, Read) -> T> ModuleVisitor for Visit<T, F> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        self.add(param.id, value.dtype(), value.dims().to_vec(), is_trained(param), &|| {
            value.clone().inner().into_data()
        });
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let value = param.val();
        self.add(param.id, value.dtype(), value.dims().to_vec(), false, &|| value.to_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let value = param.val();
        self.add(param.id, value.dtype(), value.dims().to_vec(), false, &|| value.to_data());
    }
}

/// A mapper that replaces a module's tensors by the values given for their ids. The tensors keep their device and
/// dtype, except that a frozen tensor takes the dtype of a wider value, so that nothing is rounded.
struct Write<'a>(&'a HashMap<ParamId, TensorData>);

impl ModuleMapper for Write<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(data) = self.0.get(&param.id) else { return param };
        let (value, trained) = (param.val(), is_trained(&param));
        let is_wider = |dtype: DType| data.dtype().is_float() && data.dtype().size() > dtype.size();
        let restored = match value.dtype() {
            DType::QFloat(_) => Tensor::<D>::from_data(data.clone(), &value.device()),
            dtype if !trained && is_wider(dtype) => {
                Tensor::<D>::from_data(data.clone(), (&value.device(), data.dtype()))
            }
            dtype => Tensor::<D>::from_data(data.clone(), (&value.device(), dtype)),
        };
        with_value(param, if trained { restored.require_grad() } else { restored })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let Some(data) = self.0.get(&param.id) else { return param };
        let value = param.val();
        let restored = Tensor::from_data(data.clone(), (&value.device(), value.dtype()));
        with_value(param, restored)
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let Some(data) = self.0.get(&param.id) else { return param };
        let restored = Tensor::from_data(data.clone(), &param.val().device());
        with_value(param, restored)
    }
}

struct VisitFloats<F>(F);

impl<F: FnMut(&dyn FloatParameter)> ModuleVisitor for VisitFloats<F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        (self.0)(param);
    }
}

/// A mapper that sets each float parameter of a module to the value that a closure returns for it, or leaves the
/// parameter as it is if the closure returns `None`.
struct MapFloats<F>(F);

impl<F: FnMut(&dyn FloatParameter) -> Option<AnyTensor>> ModuleMapper for MapFloats<F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match (self.0)(&param) {
            Some(value) => with_value(param, value.tensor::<D>()),
            None => param,
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::{Device, FloatDType};

    use super::*;

    #[test]
    fn a_lazy_parameter_tells_whether_it_is_trained_and_stays_lazy() {
        let layer = LinearConfig::new(3, 2).init(&Device::flex().autodiff());
        let frozen = LinearConfig::new(3, 2).init(&Device::flex().autodiff()).no_grad();
        for (layer, expected) in [(layer, true), (frozen, false)] {
            assert_eq!(is_trained(&layer.weight), expected);
            assert_eq!(dtype_of(&layer.weight), DType::F32);
            let rounded = layer.weight.clone().load_mapper(|value| value.cast(DType::BF16));
            assert_eq!(dtype_of(&rounded), DType::BF16);
            assert!(!layer.weight.is_initialized() && !rounded.is_initialized());
            layer.weight.val();
            assert_eq!(is_trained(&layer.weight), expected);
        }
    }

    #[test]
    fn a_frozen_tensor_takes_the_type_of_a_wider_value_and_a_trained_one_keeps_its_own() {
        let layer = LinearConfig::new(3, 2).init(&Device::flex().autodiff());
        let narrow = |layer: Linear| {
            map_floats(layer, |param| {
                Some(param.value().map(|value| value.cast(FloatDType::BF16)).leaf(param.is_trained()))
            })
        };
        let (trained, frozen) = (narrow(layer.clone()), narrow(layer.clone().no_grad()));
        let values: HashMap<_, _> = read(&layer).into_iter().collect();
        assert_eq!(write(trained, &values).weight.val().dtype(), DType::BF16);
        let written = write(frozen, &values).weight;
        assert_eq!((written.val().into_data(), is_trained(&written)), (layer.weight.val().into_data(), false));
    }
}
