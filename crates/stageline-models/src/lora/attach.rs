//! Adds LoRA adapters to the layers of a model ([`Adapters`]).

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::{Initializer, LoraAdapter, Module, Param, Reparameterizer};
use burn::tensor::{Device, Tensor};

use crate::error::ModelError;
use crate::lora::settings::{Lora, Source};
use crate::names::{HubTensor, Naming};
use crate::parameters::{StoredParameter, Unknown, is_float, unknown};
use crate::read_lazily::parameter_of;

/// The LoRA adapters of one model.
#[derive(Clone)]
pub struct Adapters {
    pub(super) lora: Lora,
    pub(super) naming: Naming,
}

/// The names that PEFT gives to the two matrices of an adapter. Each is stored transposed.
pub(super) const FACTORS: [&str; 2] = ["lora_A", "lora_B"];

impl Adapters {
    /// Creates the adapters of a model with the given `parameters`.
    ///
    /// # Errors
    /// Returns [`ModelError`] if the rank is 0 or the scale is not finite, if no linear layer is selected, or if the
    /// folder of the adapters is empty or has tensors of other layers or shapes than the model.
    pub fn new(lora: Lora, naming: Naming, parameters: &[StoredParameter]) -> Result<Self, ModelError> {
        let adapters = Self { lora, naming };
        let (rank, alpha) = (adapters.lora.config.rank, adapters.lora.config.alpha);
        if rank == 0 || !alpha.is_finite() {
            return Err(ModelError::LoraScale { rank, alpha });
        }
        let mut linear = parameters.iter().filter(|parameter| parameter.is_linear);
        match adapters.lora.folder() {
            Some(_) => adapters.check(linear)?,
            None if linear.any(|parameter| adapters.selects(&parameter.name)) => {}
            None => {
                return Err(ModelError::NoLinearLayer { known: parameters.iter().filter_map(linear_name).collect() });
            }
        }
        Ok(adapters)
    }

    /// Checks that the folder of the adapters has both matrices of an adapter or none for each linear layer, in the
    /// right shapes, and nothing else.
    fn check<'a>(&self, linear: impl Iterator<Item = &'a StoredParameter>) -> Result<(), ModelError> {
        let Some(folder) = self.lora.folder() else { return Ok(()) };
        let (mut known, rank) = (HashSet::new(), self.lora.config.rank);
        for parameter in linear {
            let names = self.factors(&parameter.name);
            if !names.iter().any(|name| folder.has(name)) {
                continue;
            }
            let [first, second] = parameter.shape[..] else { continue };
            let [inputs, outputs] = if parameter.transposed { [second, first] } else { [first, second] };
            for (name, shape) in names.iter().zip([[rank, inputs], [outputs, rank]]) {
                let dtype = folder.expect(name, &shape)?.dtype;
                if !is_float(dtype) {
                    let path = folder.path().join(folder.weights_name());
                    return Err(ModelError::Type { path, name: name.clone(), dtype: format!("{dtype:?}") });
                }
            }
            known.extend(names);
        }
        match unknown(folder, |name| known.contains(name)) {
            Some(Unknown { path, name, more }) => Err(ModelError::NotAdapted { path, name, more }),
            None if known.is_empty() => {
                Err(ModelError::EmptyAdapter { path: folder.path().join(folder.weights_name()) })
            }
            None => Ok(()),
        }
    }

    /// Returns the names of the two matrices of an adapter in PEFT's files. `weight` is the name of the adapted weight's
    /// tensor on the Hugging Face hub.
    pub(super) fn factors(&self, weight: &str) -> [String; 2] {
        let module = self.naming.module_of(weight);
        FACTORS.map(|factor| format!("base_model.model.{module}.{factor}.weight"))
    }

    /// Whether the linear layer whose weight has the name `weight` on the Hugging Face hub has an adapter.
    pub(super) fn selects(&self, weight: &str) -> bool {
        match &self.lora.source {
            Source::New { targets, .. } => targets(weight),
            Source::Folder(folder) => folder.has(&self.factors(weight)[0]),
        }
    }

    /// Returns the dropout that the folder of the adapters asks for, which is not applied.
    pub fn dropout(&self) -> f64 {
        self.lora.config.dropout
    }

    /// Returns the seed from which new adapters are drawn; `None` for adapters from a folder.
    pub fn seed(&self) -> Option<u64> {
        match &self.lora.source {
            Source::New { seed, .. } => Some(*seed),
            Source::Folder(_) => None,
        }
    }

    /// Adds the adapter of a linear layer to its weight, if it has one. `name` is the name of the weight's tensor on the
    /// Hugging Face hub. No value is read or drawn before it is used.
    pub fn attach<const D: usize>(&self, name: &str, weight: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.selects(name) {
            return weight;
        }
        weight.apply_reparameterization(Attach { adapters: self, name })
    }

    fn adapter(&self, name: &str, [inputs, outputs]: [usize; 2], device: &Device) -> LoraAdapter {
        let rank = self.lora.config.rank;
        let (a, b) = match &self.lora.source {
            Source::New { .. } => {
                // PEFT's kaiming_uniform_ with a = √5, whose bound is 1/√inputs.
                let uniform = Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false };
                let a = uniform.init_with([inputs, rank], Some(inputs), Some(rank), device);
                (a, Initializer::Zeros.init([rank, outputs], device))
            }
            Source::Folder(folder) => {
                let [a, b] = self.factors(name).map(|name| HubTensor { name, transposed: true });
                let read = |tensor, shape| parameter_of(Arc::clone(folder), tensor, shape, device.clone());
                (read(a, [inputs, rank]), read(b, [rank, outputs]))
            }
        };
        LoraAdapter { a, b, scale: self.lora.config.scale() }
    }
}

fn linear_name(parameter: &StoredParameter) -> Option<String> {
    parameter.is_linear.then(|| parameter.name.clone())
}

/// Adds an adapter to one parameter.
struct Attach<'a> {
    adapters: &'a Adapters,
    /// The name of the adapted weight's tensor on the Hugging Face hub.
    name: &'a str,
}

impl Reparameterizer for Attach<'_> {
    type Reparam = LoraAdapter;

    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        weight: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<LoraAdapter>) {
        let adapter = self.adapters.adapter(self.name, weight.lazy_shape().dims(), &weight.lazy_device());
        (weight, Some(adapter))
    }
}
