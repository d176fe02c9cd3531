//! Makes a model's layers read their parameters from a folder when these are first used ([`ReadLazily`]).

use std::sync::Arc;

use burn::module::{ModuleMapper, Param};
use burn::tensor::{DType, Tensor};
use stageline::{FrozenFrom, Precision};
use stageline_hub::{Dtype, ModelFolder};

use crate::lora::Adapters;
use crate::parameters::{Position, Selection, Storage, read_lazily};

/// A mapper (burn's visitor that replaces parameters) that makes layers read their parameters from a model folder on
/// first use. The mapper itself reads and initialises no parameter.
pub struct ReadLazily<S> {
    storage: S,
    position: Position,
    /// The folder to read parameters from; `None` keeps all random initial values. The folder must have passed
    /// [`StoredParameter::check`](crate::parameters::StoredParameter::check), or the first use of a parameter may
    /// panic.
    folder: Option<Arc<ModelFolder>>,
    /// Selects, by tensor name, the parameters that keep their random initial values instead of being read from the
    /// folder.
    drawn: Selection,
    /// Selects, by tensor name, the parameters that are frozen (not trained).
    frozen: Selection,
    /// The LoRA adapters to add to linear layers. With adapters, all other parameters are frozen.
    adapters: Option<Adapters>,
    /// The precision in which stages compute. Large frozen parameters that the folder stores in this precision keep its
    /// dtype in memory.
    precision: Precision,
}

impl<S> ReadLazily<S> {
    pub fn new(storage: S, folder: Option<Arc<ModelFolder>>, drawn: Selection, frozen: Selection) -> Self {
        Self {
            storage,
            position: Position::default(),
            folder,
            drawn,
            frozen,
            adapters: None,
            precision: Precision::Full,
        }
    }

    /// Adds LoRA adapters to the linear layers that `adapters` selects, and freezes all other parameters.
    pub fn adapted(self, adapters: Option<Adapters>) -> Self {
        Self { adapters, ..self }
    }

    /// Keeps large frozen parameters in the dtype of `precision`, if the folder stores them in this dtype.
    pub fn computing_in(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Returns a parameter's dtype in memory. It is f32, except that a large frozen parameter keeps its stored dtype if
    /// stages compute in this precision. Small parameters stay in f32, because every checkpoint has their values, and a
    /// run may be resumed in another precision.
    fn dtype(&self, folder: &ModelFolder, name: &str, shape: &[usize], is_frozen: bool) -> DType {
        let (stored, rounded) = match self.precision {
            Precision::Bf16 => (Dtype::BF16, DType::BF16),
            Precision::F16 => (Dtype::F16, DType::F16),
            Precision::Full => return DType::F32,
        };
        let is_kept = is_frozen && FrozenFrom::Model.leaves_out(shape);
        if is_kept && folder.tensor(name).is_ok_and(|tensor| tensor.dtype == stored) { rounded } else { DType::F32 }
    }
}

impl<S: Storage> ModuleMapper for ReadLazily<S> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.position.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.position.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.position.is_in_adapter() {
            return param;
        }
        let tensor = self.position.tensor(&self.storage);
        let is_frozen = self.adapters.is_some() || (self.frozen)(&tensor.name);
        let name = tensor.name.clone();
        let param = match &self.folder {
            Some(folder) if !(self.drawn)(&tensor.name) => {
                let dtype = self.dtype(folder, &tensor.name, &param.lazy_shape(), is_frozen);
                read_lazily(&param, Arc::clone(folder), tensor, dtype)
            }
            _ => param,
        };
        let param = if is_frozen { param.set_require_grad(false) } else { param };
        match &self.adapters {
            Some(adapters) if self.position.is_linear_weight() => adapters.attach(&name, param),
            _ => param,
        }
    }
}
