//! Names of a model's parameters ([`Names`]) that are the same for every partition of the model into stages.

use std::collections::HashMap;

use burn::module::{Module, ParamId};

use stageline_nn::params::describe;

/// The names of a model's parameters: their paths in the whole model, before the model is split into stages.
///
/// Such names do not depend on the partition, so a checkpoint of a pipeline with four stages can be restored in a
/// pipeline with two stages.
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
    /// Creates an empty table of parameter names. Add the model's parts by [`part`](Self::part).
    pub fn new() -> Self {
        Self::default()
    }

    /// Names every tensor of `module`, a part of the model. The tensor's name is `name`, a dot, and the tensor's path
    /// in `module`.
    ///
    /// A tensor that already has a name keeps that name, so a tied parameter is named by its first place in the model.
    /// An empty `name` adds no prefix.
    pub fn part<M: Module>(mut self, name: &str, module: &M) -> Self {
        for tensor in describe(module) {
            let path = [name, &tensor.path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
            self.0.entry(tensor.id).or_insert(path);
        }
        self
    }

    /// Returns the name that a parameter has in checkpoints. Returns `None` if the user has named no part of the model
    /// that contains the parameter.
    pub fn of(&self, id: ParamId) -> Option<&str> {
        self.0.get(&id).map(String::as_str)
    }
}

/// An error in the user's names for the model's tensors: a tensor has no name, or two tensors share one.
#[derive(Debug)]
pub(crate) enum NameError {
    /// The user gave no name to the tensor at `path` in the module of stage `stage`.
    Unnamed { stage: usize, path: String },
    /// The user gave the name `name` to two tensors, which are in the two `stages`.
    Repeated { name: String, stages: (usize, usize) },
}
