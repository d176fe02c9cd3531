//! What parameters are called, wherever the model is cut.

use std::collections::HashMap;

use burn::module::{Module, ParamId};

use crate::nn::params::visit::describe;

/// What the parameters of a model are called: by their paths in the whole model, before it is cut into stages. So a
/// checkpoint of four stages is one of two as well.
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
    /// No names yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls everything in this part of the model by `name`, a dot, and its path there. What has a name keeps it: a
    /// parameter that the model has twice is called by its first place.
    pub fn part<M: Module>(mut self, name: &str, module: &M) -> Self {
        for tensor in describe(module) {
            let path = [name, &tensor.path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
            self.0.entry(tensor.id).or_insert(path);
        }
        self
    }

    /// What a parameter is called.
    pub fn of(&self, id: ParamId) -> Option<&str> {
        self.0.get(&id).map(String::as_str)
    }
}

/// An error in the names of a model's tensors.
#[derive(Debug)]
pub(crate) enum NameError {
    /// The tensor at this path of a stage has no name.
    Unnamed { stage: usize, path: String },
    /// Two tensors, of these stages, have the same name.
    Repeated { name: String, stages: (usize, usize) },
}
