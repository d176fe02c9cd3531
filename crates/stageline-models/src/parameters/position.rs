//! The place of a parameter in a model, as found by burn's visitors and mappers ([`Position`]).

use crate::parameters::{HubTensor, Storage};

/// The container name that burn passes to a visitor or mapper for an adapter's parameters, such as LoRA's.
pub const ADAPTER: &str = "Reparameterization";

/// The path of the current parameter while one of burn's visitors or mappers traverses a model.
#[derive(Default)]
pub struct Position {
    /// Fields from the model to the current parameter, outermost first: each field's name, and the type of the module
    /// that has it.
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
        // The path omits enum variants, and the field of `AccumulatedBatchNorm` that wraps burn's batch norm.
        let is_named = |container: &str| !container.starts_with("Enum:") && container != "Struct:AccumulatedBatchNorm";
        let names = self.path.iter().filter(|(_, container)| is_named(container)).map(|(name, _)| name.as_str());
        names.collect::<Vec<_>>().join(".")
    }

    /// Whether the current parameter is a linear layer's weight.
    pub fn is_linear_weight(&self) -> bool {
        self.path.last().is_some_and(|(name, container)| name == "weight" && container == "Struct:Linear")
    }

    /// Whether the current parameter belongs to an adapter, such as LoRA's.
    pub fn is_in_adapter(&self) -> bool {
        self.path.iter().any(|(_, container)| container == ADAPTER)
    }

    /// Returns the tensor that stores the current parameter.
    pub fn tensor(&self, storage: &impl Storage) -> HubTensor {
        storage.tensor(&self.path(), self.path.last().map_or("", |(_, container)| container))
    }
}
