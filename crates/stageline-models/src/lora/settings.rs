//! The settings of LoRA adapters ([`Lora`]).

use std::path::Path;
use std::sync::Arc;

use stageline_hub::ModelFolder;

use crate::error::ModelError;
use crate::lora::config::Config;
use crate::parameters::Selection;

/// LoRA adapters for a language model's linear layers: two small matrices `a`, `[inputs, rank]`, and `b`, `[rank,
/// outputs]`, beside each frozen weight. The layer returns `input x weight + input x a x b x scale`, and only `a` and
/// `b` are trained. See [`LanguageModel::adapt`](crate::LanguageModel::adapt).
#[derive(Clone)]
pub struct Lora {
    pub(crate) config: Config,
    pub(crate) source: Source,
}

/// Where the initial values of LoRA adapters come from: a random initialisation, or an adapter folder.
#[derive(Clone)]
pub(crate) enum Source {
    /// Initialise new adapters: draw `a` from `seed`, and set `b` to 0, so that the adapters do not change the model
    /// initially.
    New {
        seed: u64,
        /// Selects the layers that get adapters, by the names of their weights' tensors on the Hugging Face hub.
        targets: Selection,
    },
    /// Read the adapters from this opened adapter folder.
    Folder(Arc<ModelFolder>),
}

impl Lora {
    /// Creates settings for new adapters of all linear layers in a model's blocks. The product of `a` and `b` is scaled
    /// by `alpha / rank`. As in PEFT, `a` is drawn uniformly from -1/√inputs to 1/√inputs, and `b` is 0.
    pub fn new(rank: usize, alpha: f64) -> Self {
        let source = Source::New { seed: 0, targets: Arc::new(|_| true) };
        Self { config: Config::new(rank, alpha), source }
    }

    /// Selects the linear layers that get new adapters: those for which `targets` returns true. Its argument is the
    /// name of the weight's tensor on the Hugging Face hub, such as `model.layers.0.self_attn.q_proj.weight`. Has no
    /// effect on adapters from a folder.
    #[must_use]
    pub fn targets(mut self, targets: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        if let Source::New { targets: old, .. } = &mut self.source {
            *old = Arc::new(targets);
        }
        self
    }

    /// Scales the product of new adapters by `alpha / √rank` (rsLoRA: Kalajdzievski, 2023,
    /// [arXiv:2312.03732](https://arxiv.org/abs/2312.03732)), so that adapters of larger ranks do not learn more
    /// slowly. Has no effect on adapters from a folder, whose `adapter_config.json` decides.
    #[must_use]
    pub fn rank_stabilised(mut self) -> Self {
        if let Source::New { .. } = self.source {
            self.config.stabilised = true;
        }
        self
    }

    /// Sets the seed from which new adapters are initialised. Has no effect on adapters from a folder.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        if let Source::New { seed: old, .. } = &mut self.source {
            *old = seed;
        }
        self
    }

    /// Opens an adapter folder of the PEFT library: `adapter_config.json` and `adapter_model.safetensors`. The
    /// adapters' values are read when the model's layers are created.
    ///
    /// # Errors
    /// Returns [`ModelError`] if a file is missing or cannot be read. Also returns an error if the configuration asks
    /// for a feature that is not implemented, such as DoRA, trained biases, or ranks that differ between layers.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, ModelError> {
        let folder = ModelFolder::open_adapter(folder)?;
        let wrong = |reason: String| ModelError::Config { path: folder.path().join("adapter_config.json"), reason };
        let config = Config::read(folder.config()?).map_err(wrong)?;
        Ok(Self { config, source: Source::Folder(Arc::new(folder)) })
    }

    /// Returns the rank of the adapters: the number of columns of `a` and of rows of `b`.
    pub fn rank(&self) -> usize {
        self.config.rank
    }

    /// Returns the folder from which the adapters are read; `None` for new adapters.
    pub(crate) fn folder(&self) -> Option<&Arc<ModelFolder>> {
        match &self.source {
            Source::New { .. } => None,
            Source::Folder(folder) => Some(folder),
        }
    }
}
