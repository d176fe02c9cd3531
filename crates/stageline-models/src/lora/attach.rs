//! Attaches LoRA adapters to a model's layers ([`Adapters`]).

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::{Initializer, LoraAdapter, Module, Param, ParamId, Reparameterizer};
use burn::tensor::{Device, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use stageline_hub::ModelFolder;

use crate::error::ModelError;
use crate::lora::settings::{Lora, Source};
use crate::parameters::{HubTensor, Naming, StoredParameter, Unknown, is_float, parameter_of, unknown};

/// The LoRA adapters of one model's linear layers.
#[derive(Clone)]
pub struct Adapters {
    pub lora: Lora,
    pub naming: Naming,
}

/// PEFT's names for an adapter's two matrices, `a` and `b`. Each is stored transposed.
const FACTORS: [&str; 2] = ["lora_A", "lora_B"];

impl Adapters {
    /// Creates the adapters for a model with the given `parameters`.
    ///
    /// # Errors
    /// Returns [`ModelError`] if:
    ///
    /// - The rank of new adapters is 0 or larger than every dimension of the linear layers, or their alpha is 0 or not
    ///   finite.
    /// - No linear layer is selected for new adapters.
    /// - The adapter folder has no tensors, or has tensors of other layers or shapes, or of dtypes other than F32, F16
    ///   and BF16.
    /// - The adapter folder's `adapter_config.json` leaves out a layer that has an adapter.
    pub fn new(lora: Lora, naming: Naming, parameters: &[StoredParameter]) -> Result<Self, ModelError> {
        let adapters = Self { lora, naming };
        let (rank, alpha) = (adapters.lora.config.rank, adapters.lora.config.alpha);
        let linear: Vec<_> = parameters.iter().filter(|parameter| parameter.is_linear).collect();
        let most = linear.iter().flat_map(|parameter| &parameter.shape).copied().max().unwrap_or(0);
        match adapters.lora.folder() {
            Some(folder) => adapters.check(folder, &linear)?,
            None if rank == 0 || rank > most || !alpha.is_finite() || alpha == 0.0 => {
                return Err(ModelError::LoraScale { rank, alpha, most });
            }
            None if linear.iter().any(|parameter| adapters.selects(&parameter.name)) => {}
            None => {
                let known = linear.into_iter().map(|parameter| parameter.name.clone()).collect();
                return Err(ModelError::NoLinearLayer { known });
            }
        }
        Ok(adapters)
    }

    /// Checks the tensors in the adapter folder. Each linear layer must have both matrices of an adapter or neither, in
    /// the right shapes and in F32, F16 or BF16. The folder must have at least one adapter and no other tensors.
    fn check(&self, folder: &ModelFolder, linear: &[&StoredParameter]) -> Result<(), ModelError> {
        let (mut known, rank) = (HashSet::new(), self.lora.config.rank);
        for parameter in linear {
            let names = self.factors(&parameter.name);
            if !names.iter().any(|name| folder.has(name)) {
                continue;
            }
            let module = self.naming.module_of(&parameter.name);
            if let Some(field) = self.lora.config.scope.leaves_out(&module) {
                let reason = format!(
                    "{field} leaves out {module}, which has an adapter in {}; correct the field, or remove the tensors",
                    folder.weights_name()
                );
                return Err(ModelError::Config { path: folder.path().join("adapter_config.json"), reason });
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

    /// Returns the names of an adapter's two matrices in PEFT's files: first `a` (`lora_A`), then `b` (`lora_B`).
    /// `weight` is the name of the adapted weight's tensor on the Hugging Face hub.
    pub fn factors(&self, weight: &str) -> [String; 2] {
        let module = self.naming.module_of(weight);
        FACTORS.map(|factor| format!("base_model.model.{module}.{factor}.weight"))
    }

    /// Whether a linear layer gets an adapter. `weight` is the name of the layer's weight on the Hugging Face hub.
    pub fn selects(&self, weight: &str) -> bool {
        match &self.lora.source {
            Source::New { targets, .. } => targets(weight),
            Source::Folder(folder) => folder.has(&self.factors(weight)[0]),
        }
    }

    /// Returns the adapters' scale, which multiplies the product of an adapter's two matrices.
    pub fn scale(&self) -> f64 {
        self.lora.config.scale()
    }

    /// Returns the dropout of the adapters' `adapter_config.json`, from 0 to 1, which is not applied here; 0 for new
    /// adapters.
    pub fn dropout(&self) -> f64 {
        self.lora.config.dropout
    }

    /// Attaches a linear layer's adapter to the layer's weight. Returns the weight unchanged if the layer has no
    /// adapter. `name` is the name of the weight's tensor on the Hugging Face hub. The adapter's values are read or
    /// drawn when they are first used.
    pub fn attach<const D: usize>(&self, name: &str, weight: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.selects(name) {
            return weight;
        }
        weight.apply_reparameterization(Attach { adapters: self, name })
    }

    fn adapter(&self, name: &str, [inputs, outputs]: [usize; 2], device: &Device) -> LoraAdapter {
        let rank = self.lora.config.rank;
        let (a, b) = match &self.lora.source {
            Source::New { seed, .. } => {
                (drawn(*seed, name, [inputs, rank], device), Initializer::Zeros.init([rank, outputs], device))
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

/// Returns a new adapter's first matrix, `[inputs, rank]`, drawn uniformly from -1/√inputs to 1/√inputs, like PEFT's
/// `kaiming_uniform_` with a = √5. Its random generator is seeded by `seed` and the layer's `name`, so that the values
/// do not depend on other layers. The generator is separate from that of a new model's weights, so adapters do not
/// change these weights.
fn drawn(seed: u64, name: &str, shape: [usize; 2], device: &Device) -> Param<Tensor<2>> {
    let stream = fnv1a(name);
    let init = move |device: &Device, is_trained: bool| {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        let bound = 1.0 / (shape[0] as f64).sqrt();
        let number = |_| (f64::from(generator.next_u32()) / f64::from(u32::MAX) * 2.0 - 1.0) * bound;
        let numbers: Vec<_> = (0..shape[0] * shape[1]).map(number).map(|number| number as f32).collect();
        Tensor::from_data(TensorData::new(numbers, shape), device).set_require_grad(is_trained)
    };
    Param::uninitialized(ParamId::new(), init, device.clone(), true, shape.into())
}

/// Returns a string's 64-bit FNV-1a hash, which is the same on every host.
pub fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A reparameterizer (burn's trait for adapters) that adds a LoRA adapter to one weight.
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
