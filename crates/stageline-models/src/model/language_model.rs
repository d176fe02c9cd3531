//! A language model ([`LanguageModel`]): its configuration, the source of its parameters, and its layers (embeddings,
//! blocks and head).

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::{Device, Int, Tensor};
use serde_json::Value;
use stageline::nn::{Embedding, RotaryAngles};
use stageline::{FrozenFrom, ParameterCount, Precision, Row, seeded};
use stageline_hub::ModelFolder;

use crate::attention::KeyValueCache;
use crate::error::ModelError;
use crate::families::initial::with_zero_row;
use crate::families::{Block, Embeddings, Family, Head};
use crate::lora::{Adapters, Lora, fnv1a};
use crate::model::ReadLazily;
use crate::parameters::{LAYERS, Naming, Selection, StoredParameter, no_tensors, parameters_of};

/// The tokens of a language model's input, or its targets: token ids, `[batch, length]`.
pub type Tokens = Tensor<2, Int>;

/// A language model's output: the next-token logits at every position, `[batch, length, vocabulary]`.
pub type Logits = Tensor<3>;

/// A language model of a supported family, such as GPT-2. Its parameters are read from a model folder in the format of
/// the Hugging Face hub or, for a new model, initialised at random. Reading and initialisation happen in the layers
/// that [`row`](Self::row) returns, not when the model is opened or created.
#[derive(Clone)]
pub struct LanguageModel(pub(super) Arc<Inner>);

#[derive(Clone)]
pub(super) struct Inner {
    pub(super) family: Family,
    pub(super) config: Value,
    /// The contents of the `generation_config.json` beside the model's configuration; `None` if there is no such file.
    pub(super) generation: Option<Value>,
    pub(super) naming: Naming,
    /// The opened model folder from which the parameters are read; `None` for a new model.
    pub(super) folder: Option<Arc<ModelFolder>>,
    /// The path of the model's configuration file.
    pub(super) config_path: PathBuf,
    /// The seed from which a new model's parameters are initialised; 0 for a model that was opened from a folder.
    pub(super) seed: u64,
    /// Parameter id of the token embedding table. A tied head's projection has the same id, so that a pipeline
    /// recognises both as one parameter.
    pub(super) table: ParamId,
    pub(super) angles: RotaryAngles,
    pub(super) cache: KeyValueCache,
    /// Selects the parameters that are frozen (not trained), by the names of their tensors on the Hugging Face hub.
    pub(super) frozen: Selection,
    /// The LoRA adapters of the model's linear layers; `None` if the parameters themselves are trained.
    pub(super) adapters: Option<Adapters>,
    /// Precision of the stages' computation. Large frozen matrices that the model folder stores in this precision keep
    /// its dtype in memory.
    pub(super) precision: Precision,
}

/// Formats a summary of the model: its type, its sizes, and its number of parameters.
impl fmt::Display for LanguageModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.0.config["model_type"].as_str().unwrap_or_default();
        let ParameterCount { trained, frozen, .. } = self.row().parameters();
        write!(f, "{kind}: {}, {} parameters", self.0.family, trained + frozen)
    }
}

impl LanguageModel {
    /// Freezes the parameters for which `frozen` returns true: they are not trained and have no optimizer state. The
    /// function's argument is the name of the parameter's tensor on the Hugging Face hub, such as
    /// `model.layers.0.mlp.up_proj.weight`.
    #[must_use]
    pub fn freeze(self, frozen: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { frozen: Arc::new(frozen), ..Inner::clone(&self.0) }))
    }

    /// Saves memory for large frozen matrices. A matrix that the model folder stores in the dtype of `precision` stays
    /// in this dtype, at 2 bytes per element. Otherwise it takes 4 bytes for f32 plus 2 bytes for a rounded copy.
    /// `precision` must be that of the model's pipelines. The results are the same, bit for bit, because stages round
    /// parameters in any case. Without this setting, all parameters are f32.
    ///
    /// In a trained pipeline's modules, such a matrix keeps this dtype, and cannot be multiplied with an f32 tensor.
    /// Exported values are the same with and without this setting.
    #[must_use]
    pub fn computing_in(self, precision: Precision) -> Self {
        Self(Arc::new(Inner { precision, ..Inner::clone(&self.0) }))
    }

    /// Adds LoRA adapters to linear layers of the model's blocks, and freezes all of the model's own parameters. Only
    /// the adapters are then trained. [`export_adapter`](Self::export_adapter) writes them, and
    /// [`export`](Self::export) writes the model with the adapters merged into its weights.
    ///
    /// # Errors
    /// - [`ModelError::LoraScale`] if the rank of new adapters is 0 or larger than every dimension of the linear layers,
    ///   or if their alpha is 0 or not finite.
    /// - Another [`ModelError`] if no linear layer is selected, or if the adapter folder is empty or has adapters of
    ///   another model.
    pub fn adapt(self, lora: Lora) -> Result<Self, ModelError> {
        let adapters = Some(Adapters::new(lora, self.naming().clone(), &self.parameters())?);
        Ok(Self(Arc::new(Inner { adapters, ..Inner::clone(&self.0) })))
    }

    /// Returns the model as a [`Row`] of layers (embeddings, blocks and head), which a pipeline can partition into
    /// stages. A checkpoint of such a pipeline can be resumed with any other partition of the layers into stages (cut).
    ///
    /// Layer 0 is the embeddings. The block with the zero-based index k is the layers 2k + 1 (attention) and 2k + 2
    /// (MLP), so a stage may end within a block. The last layer is the head.
    pub fn row(&self) -> Row<Embeddings, Block, Head> {
        let Inner { naming, folder, frozen, adapters, precision, .. } = &*self.0;
        let precision = *precision;
        let (naming, folder, frozen, adapters) = (naming.clone(), folder.clone(), Arc::clone(frozen), adapters.clone());
        let mapper = move || {
            let read = ReadLazily::new(naming.clone(), folder.clone(), no_tensors(), Arc::clone(&frozen));
            read.adapted(adapters.clone()).computing_in(precision)
        };
        self.layers(Inner::table).seed(self.0.seed).mapped(mapper).precision(precision).described(self.description())
    }

    /// Returns a description of the function that the model computes: the model type, a hash of the configuration, and
    /// the adapters' scale. The parameters' names and shapes do not show these.
    fn description(&self) -> String {
        let Inner { family, adapters, config, .. } = &*self.0;
        let kind = config["model_type"].as_str().unwrap_or_default();
        let of_adapters = match adapters {
            Some(adapters) => format!("LoRA adapters scaled by {}", adapters.scale()),
            None => "no adapters".to_owned(),
        };
        format!("{kind} with the configuration {:016x} and {of_adapters}", fnv1a(&family.function()))
    }

    /// Returns the model as a [`Row`] of layers with their initial parameters, not those of the folder. `table` creates
    /// the token embedding table.
    fn layers(&self, table: fn(&Inner, &Device) -> Embedding) -> Row<Embeddings, Block, Head> {
        let [first, block, last] = [(); 3].map(|()| Arc::clone(&self.0));
        let row = Row::new(
            move |device| first.family.embeddings(table(&first, device), &first.cache, device),
            self.0.family.blocks(),
            move |index, device| block.family.block(index, &block.angles, device),
            move |device| {
                let output = if last.naming.tied() { table(&last, device) } else { last.family.table(device) };
                last.family.head(output, device)
            },
        );
        let [embeddings, blocks, head] = LAYERS;
        row.halved().names(embeddings, blocks, head).frozen_from(FrozenFrom::Model)
    }

    /// Returns all parameters of the model, with the names and shapes of their tensors, from the first layer to the
    /// last. No parameter is read from the model folder or initialised. If the head is tied, the token embedding table
    /// is listed twice.
    pub(crate) fn parameters(&self) -> Vec<StoredParameter> {
        parameters_of(&self.layers(|model, device| model.family.table(device)), &self.0.naming)
    }

    /// Returns the model's configuration: the contents of its `config.json`.
    pub fn config(&self) -> &Value {
        &self.0.config
    }

    /// Returns the number of tokens in the model's vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.0.family.vocabulary()
    }

    /// Returns the length, in tokens, of the longest sequence that the model supports.
    pub fn positions(&self) -> usize {
        self.0.family.positions()
    }

    /// Returns the ids of the end-of-text tokens, from the field `eos_token_id` of the model's configuration; empty if
    /// it has none. The Transformers library's defaults for a missing field are not used, because they may be ordinary
    /// tokens of another tokenizer.
    pub fn end_of_text(&self) -> Vec<u32> {
        end_tokens(&self.0.config)
    }

    /// Returns the ids of the tokens that end generated text: `eos_token_id` in `generation_config.json`, which may
    /// list more tokens than the configuration, such as the end of a conversation's turn. Without the file or the
    /// field, returns the tokens of [`end_of_text`](Self::end_of_text).
    pub fn end_of_generation(&self) -> Vec<u32> {
        let of_generation = self.generation_config().map(end_tokens);
        of_generation.filter(|tokens| !tokens.is_empty()).unwrap_or_else(|| self.end_of_text())
    }

    /// Returns the dropout settings, each as a name and a value such as `attn_pdrop 0.1`, so that a caller can warn
    /// that dropout is not applied in training. They are fields of the model's configuration, and `lora_dropout` of
    /// adapters opened from a folder. A missing field has the Transformers library's default, which is not 0 for GPT-2.
    /// Settings of 0 are left out.
    pub fn ignored_in_training(&self) -> Vec<String> {
        let (fields, default): (&[_], _) = match self.0.family {
            Family::Gpt2(_) => (&["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.1),
            Family::Llama(_) => (&["attention_dropout"], 0.0),
        };
        let dropout = self.adapters().map_or(0.0, |adapters| adapters.dropout());
        let share = |field| self.0.config.get(field).map_or(default, |share| share.as_f64().unwrap_or(0.0));
        let fields = fields.iter().map(|field| (field, share(*field))).filter(|(_, share)| *share > 0.0);
        let of_adapters = (dropout > 0.0).then(|| format!("lora_dropout {dropout}"));
        fields.map(|(field, share)| format!("{field} {share}")).chain(of_adapters).collect()
    }

    /// Returns the name of each parameter's tensor on the Hugging Face hub, and whether [`freeze`](Self::freeze)
    /// freezes the parameter. The order is from the first layer to the last. A tied head has no entry of its own: the
    /// token embedding table is listed once.
    pub fn tensors(&self) -> Vec<(String, bool)> {
        let mut seen = HashSet::new();
        let names = self.parameters().into_iter().map(|tensor| tensor.name).filter(|name| seen.insert(name.clone()));
        names.map(|name| (name.clone(), (self.0.frozen)(&name))).collect()
    }

    /// Returns the path of the folder that contains the model's configuration, and perhaps a tokenizer.
    pub fn home(&self) -> &Path {
        folder_of(&self.0.config_path)
    }

    /// Returns the path of the model's configuration file.
    pub(crate) fn config_path(&self) -> &Path {
        &self.0.config_path
    }

    pub(crate) fn generation_config(&self) -> Option<&Value> {
        self.0.generation.as_ref()
    }

    pub(crate) fn cache(&self) -> &KeyValueCache {
        &self.0.cache
    }

    pub(crate) fn naming(&self) -> &Naming {
        &self.0.naming
    }

    pub(crate) fn adapters(&self) -> Option<&Adapters> {
        self.0.adapters.as_ref()
    }

    pub(crate) fn folder(&self) -> Option<&ModelFolder> {
        self.0.folder.as_deref()
    }
}

impl Inner {
    /// Creates the token embedding table. In a new model, the padding token's row is 0, as in the Transformers library.
    /// If the head of a new model is tied, the values depend only on the model's seed, so that the first layer and the
    /// head get the same ones.
    fn table(&self, device: &Device) -> Embedding {
        let make = || match self.family.padding() {
            Some(padding) if self.folder.is_none() => with_zero_row(self.family.table(device), padding),
            _ => self.family.table(device),
        };
        let mut table = match self.folder.is_none() && self.naming.tied() {
            true => seeded(device, self.seed, make),
            false => make(),
        };
        table.weight.id = self.table;
        table
    }
}

/// Returns the path of the folder that contains `file`. For a plain file name, this is `.`, the current folder.
pub(super) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the token ids in a configuration's field `eos_token_id`, which is one token or a list of tokens. Without the
/// field, the result is empty.
fn end_tokens(config: &Value) -> Vec<u32> {
    let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    match config.get("eos_token_id") {
        Some(Value::Array(tokens)) => tokens.iter().filter_map(token).collect(),
        Some(value) => token(value).into_iter().collect(),
        None => Vec::new(),
    }
}
