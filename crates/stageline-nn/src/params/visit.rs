//! Describes, reads and writes all tensors of a module: trained and frozen parameters, and running statistics.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};

use crate::params::shared::{is_trained, with_value};

/// The description of one tensor of a module: its id, path, type and shape, and whether it is trained.
#[derive(Clone, Debug)]
pub struct Description {
    /// The id by which burn identifies the described tensor in its module.
    pub id: ParamId,
    /// The path of the described tensor in its module, such as `0.linear.weight`.
    pub path: String,
    /// The element type of the described tensor.
    pub dtype: DType,
    /// The size of each dimension of the described tensor.
    pub shape: Vec<usize>,
    /// Whether the described tensor is a trained parameter, which gets gradients.
    pub trained: bool,
}

/// Returns the descriptions (id, path, type and shape) of all tensors of a module in the order of the module's fields;
/// a tensor that the module uses twice is in the list once.
pub fn describe<M: Module>(module: &M) -> Vec<Description> {
    visit(module, |found, _| found)
}

/// Returns the ids and values of all tensors of a module, read to the host, in the order of the module's fields; a
/// tensor that the module uses twice is returned once.
pub fn read<M: Module>(module: &M) -> Vec<(ParamId, TensorData)> {
    visit(module, |found, read| (found.id, read()))
}

/// Calls `each` once for every tensor of a module, with the tensor's description and a closure that reads its values,
/// and returns the results in the order of the module's fields.
fn visit<M: Module, T>(module: &M, each: impl FnMut(Description, Read) -> T) -> Vec<T> {
    let mut visitor = Visit { path: Vec::new(), seen: HashSet::new(), each, found: Vec::new() };
    module.visit(&mut visitor);
    visitor.found
}

/// Returns a module in which the value of each tensor is replaced by the entry of `values` for the tensor's id, which
/// must have the tensor's shape. A tensor whose id is not in `values` keeps its own value.
pub fn write<M: Module>(module: M, values: &HashMap<ParamId, TensorData>) -> M {
    module.map(&mut Write(values))
}

/// A closure that reads the values of one tensor to the host. A caller that needs only the tensor's description does
/// not call it.
type Read<'a> = &'a dyn Fn() -> TensorData;

struct Visit<T, F> {
    path: Vec<String>,
    /// The ids of the tensors that a visitor of a module has already visited, so that a tensor that the module uses
    /// twice is described once.
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

/// A mapper that replaces the values of a module's tensors by given values, which it finds by tensor id. The tensors
/// keep their device and element type.
struct Write<'a>(&'a HashMap<ParamId, TensorData>);

impl ModuleMapper for Write<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(data) = self.0.get(&param.id) else { return param };
        let value = param.val();
        let restored = match value.dtype() {
            DType::QFloat(_) => Tensor::<D>::from_data(data.clone(), &value.device()),
            dtype => Tensor::<D>::from_data(data.clone(), (&value.device(), dtype)),
        };
        let trained = is_trained(&param);
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
