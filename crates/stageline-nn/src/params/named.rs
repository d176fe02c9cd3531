//! Reads a module's trained parameters and their gradients as numbers on the host, by parameter path.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};

use crate::params::shared::is_trained;
use crate::params::visit::read;

/// A trained parameter of a module, described by id and path, with its gradient as numbers on the host.
pub struct Named {
    /// The id by which burn's modules and gradients identify a trained parameter.
    pub id: ParamId,
    /// The path of a trained parameter in its module, such as `0.linear.weight`.
    pub path: String,
    /// The number of elements of a trained parameter.
    pub elements: usize,
    /// The elements of a trained parameter's gradient in row-major order; `None` if the loss does not depend on the
    /// parameter.
    pub gradient: Option<Vec<f32>>,
}

/// Returns the trained parameters of a module with their gradients, in the order of the module's fields; a parameter
/// that the module uses twice is in the list once.
pub fn gradients<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<Named> {
    let mut read = ReadGradients { path: Vec::new(), seen: HashSet::new(), gradients, found: Vec::new() };
    module.visit(&mut read);
    read.found
}

/// Returns the values of all tensors of a module, trained or not, as f32 numbers by parameter id.
pub fn values<M: Module>(module: &M) -> HashMap<ParamId, Vec<f32>> {
    read(module).into_iter().map(|(id, data)| (id, numbers(&data))).collect()
}

/// Returns gradients that are all zeros for the trained parameters of a module whose ids are in `ids`.
pub fn zeros<M: Module>(module: &M, ids: &HashSet<ParamId>) -> GradientsParams {
    let mut make = MakeZeros { ids, made: GradientsParams::new() };
    module.visit(&mut make);
    make.made
}

struct MakeZeros<'a> {
    ids: &'a HashSet<ParamId>,
    made: GradientsParams,
}

impl ModuleVisitor for MakeZeros<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if is_trained(param) && self.ids.contains(&param.id) {
            self.made.register(param.id, param.val().inner().zeros_like());
        }
    }
}

struct ReadGradients<'a> {
    path: Vec<String>,
    /// The ids of the parameters that a visitor of a module has already listed, so that a parameter that the module
    /// uses twice is listed once.
    seen: HashSet<ParamId>,
    gradients: &'a GradientsParams,
    found: Vec<Named>,
}

impl ModuleVisitor for ReadGradients<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if value.is_require_grad() && self.seen.insert(param.id) {
            let gradient = self.gradients.get::<D>(param.id).map(on_host);
            let (path, elements) = (self.path.join("."), value.shape().num_elements());
            self.found.push(Named { id: param.id, path, elements, gradient });
        }
    }
}

fn on_host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    numbers(&tensor.inner().into_data())
}

fn numbers(data: &TensorData) -> Vec<f32> {
    data.as_slice::<f32>().map_or_else(|_| data.iter::<f32>().collect(), <[f32]>::to_vec)
}
