//! Reads the gradients of a module's trainable parameters to host memory, by parameter path.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::TensorData;

use crate::params::visit::{describe, read, visit_floats};

/// A trainable parameter of a module, described by id and path, with its gradient in host memory.
pub struct Named {
    /// Id of the trainable parameter in burn's modules and gradients.
    pub id: ParamId,
    /// Path of the parameter in its module, such as `0.linear.weight`.
    pub path: String,
    /// Number of elements of the parameter.
    pub elements: usize,
    /// Elements of the parameter's gradient in row-major order; `None` if the loss does not depend on the parameter.
    pub gradient: Option<Vec<f32>>,
}

/// Returns the trainable parameters of a module with their gradients, in the order of the module's fields. A parameter
/// that the module uses twice is listed once.
pub fn named_gradients<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<Named> {
    let mut on_host = HashMap::new();
    visit_floats(module, |param| {
        if param.is_trained() && !on_host.contains_key(&param.id()) {
            let gradient = param.gradient(gradients).map(|gradient| gradient.unranked().inner().into_data());
            on_host.insert(param.id(), gradient.map(|data| numbers(&data)));
        }
    });
    let trained = describe(module).into_iter().filter(|found| found.trained);
    let named = trained.map(|found| {
        let (elements, gradient) = (found.shape.iter().product(), on_host.remove(&found.id).flatten());
        Named { id: found.id, path: found.path, elements, gradient }
    });
    named.collect()
}

/// Returns the values of all tensors of a module, trainable or not, as f32 by parameter id.
pub fn values_by_id<M: Module>(module: &M) -> HashMap<ParamId, Vec<f32>> {
    read(module).into_iter().map(|(id, data)| (id, numbers(&data))).collect()
}

/// Returns zero gradients, one for each trainable parameter of a module whose id is in `ids`.
pub fn zero_gradients<M: Module>(module: &M, ids: &HashSet<ParamId>) -> GradientsParams {
    let mut made = GradientsParams::new();
    visit_floats(module, |param| {
        if param.is_trained() && ids.contains(&param.id()) {
            param.put_gradient(&mut made, param.value().map(|value| value.inner().zeros_like()));
        }
    });
    made
}

fn numbers(data: &TensorData) -> Vec<f32> {
    data.as_slice::<f32>().map_or_else(|_| data.iter::<f32>().collect(), <[f32]>::to_vec)
}
