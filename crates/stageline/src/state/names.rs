//! Names of a model's parameters that are the same for every partition of the model.

use std::collections::HashMap;

use burn::module::{Module, ParamId};

use stageline_nn::params::visit::describe;

/// The names of a model's parameters: their paths in the whole model, before it is split into stages.
///
/// Such names do not depend on the partition, so a checkpoint of four stages can be resumed with two.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use stageline::Names;
///
/// let device = Device::flex();
/// let (embedding, head) = (LinearConfig::new(4, 8).init(&device), LinearConfig::new(8, 4).init(&device));
/// let names = Names::new().part("embedding", &embedding).part("head", &head);
/// assert_eq!(names.of(head.weight.id), Some("head.weight"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Names(HashMap<ParamId, String>);

impl Names {
    /// Creates an empty set of names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names every tensor in a part of the model by `name`, a dot, and the tensor's path in `module`.
    ///
    /// A tensor that already has a name keeps it, so a tied parameter is named by its first place. An empty `name` adds
    /// no prefix.
    pub fn part<M: Module>(mut self, name: &str, module: &M) -> Self {
        for tensor in describe(module) {
            let path = [name, &tensor.path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
            self.0.entry(tensor.id).or_insert(path);
        }
        self
    }

    /// Returns the name of a parameter, or `None` if no part contains it.
    pub fn of(&self, id: ParamId) -> Option<&str> {
        self.0.get(&id).map(String::as_str)
    }
}

/// An error in the names of a model's tensors.
#[derive(Debug)]
pub(crate) enum NameError {
    /// The tensor at this path in a stage's module has no name.
    Unnamed { stage: usize, path: String },
    /// Two tensors, which these two stages own, have the same name.
    Repeated { name: String, stages: (usize, usize) },
}
