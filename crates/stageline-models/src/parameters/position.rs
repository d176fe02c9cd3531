//! The place of a parameter in a model, as a visitor or a mapper of burn finds it ([`Position`]).

use crate::parameters::{HubTensor, Storage};

/// The container of an adapter's parameters, such as LoRA's, as a visitor or a mapper of burn sees it.
pub const ADAPTER: &str = "Reparameterization";

/// The current place of a walk over the parameters of a model.
#[derive(Default)]
pub struct Position {
    /// The modules that contain the current parameter, and the parameter itself, from the outermost inwards: the name
    /// of each and the type of the module that has it.
    path: Vec<(String, String)>,
}

impl Position {
    pub fn enter(&mut self, name: &str, container: &str) {
        self.path.push((name.to_owned(), container.to_owned()));
    }

    pub fn exit(&mut self) {
        self.path.pop();
    }

    /// Returns the path of the current parameter, such as `blocks.3.linear.weight`.
    pub fn path(&self) -> String {
        // The variant of an enum is no part of the name, and neither is the batch norm inside ours.
        let is_named = |container: &str| !container.starts_with("Enum:") && container != "Struct:AccumulatedBatchNorm";
        let names = self.path.iter().filter(|(_, container)| is_named(container)).map(|(name, _)| name.as_str());
        names.collect::<Vec<_>>().join(".")
    }

    /// Whether the current parameter is the weight of a linear layer.
    pub fn is_linear_weight(&self) -> bool {
        self.path.last().is_some_and(|(name, container)| name == "weight" && container == "Struct:Linear")
    }

    /// Whether the current parameter belongs to an adapter of a parameter, such as LoRA's.
    pub fn is_in_adapter(&self) -> bool {
        self.path.iter().any(|(_, container)| container == ADAPTER)
    }

    /// Returns the tensor that stores the current parameter.
    pub fn tensor(&self, storage: &impl Storage) -> HubTensor {
        storage.tensor(&self.path(), self.path.last().map_or("", |(_, container)| container))
    }
}
