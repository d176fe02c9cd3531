//! Language models for [Stageline](stageline): GPT-2 and the Llama family (Llama, Mistral, Qwen2, Qwen3, SmolLM). Each
//! model is a [`Row`](stageline::Row) of layers that a pipeline partitions into stages. Weights are in Hugging Face's
//! format.
//!
//! [`LanguageModel::open`] opens a model folder of the Hugging Face hub, and [`LanguageModel::row`] returns its layers:
//! the embeddings, the blocks and the head. Each stage reads its own tensors from the memory-mapped files when it is
//! built, so the whole model is never in memory. [`LanguageModel::export`] writes the trained parameters to another
//! folder, with the file names, tensor names, shapes and dtypes of the original folder. [`Generation`] generates text
//! with a pipeline, which can train or generate again afterwards.
//!
//! ```no_run,standalone_crate
//! use burn::{optim::AdamWConfig, tensor::Device};
//! use stageline::{Cut, StageConfig};
//! use stageline_models::LanguageModel;
//!
//! let model = LanguageModel::open("SmolLM-135M")?;
//! let row = model.row();
//! let config = || StageConfig::new(Device::default(), AdamWConfig::new().init(), 1e-5);
//! let mut pipeline = row.pipeline(&"0,31".parse::<Cut>()?, [config(), config()])?.build()?;
//! model.export(pipeline.snapshot()?, "SmolLM-135M-copy")?;
//! # Ok::<(), stageline::BoxError>(())
//! ```
//!
//! For another architecture, write the layers as a [`Row`](stageline::Row). [`TorchWeights`] loads a PyTorch model's
//! weights into these layers and exports them again. [`TorchFormat`] maps parameters to PyTorch's tensor names, and
//! exports models that were not loaded from PyTorch.
//!
//! # Layout
//!
//! - `model`: a model with its configuration and the source of its parameters (`LanguageModel`).
//! - `generation`: text generation. `export`: writes folders that Python libraries can load.
//! - `lora`: LoRA adapters of linear layers, which are trained instead of the weights (`Lora`).
//! - `families`: the supported architectures, and their layers.
//! - `parameters`: maps a model's parameters to the tensors of a model folder: their names, reading them, and their
//!   values for an export.
//! - `attention`: the tokens that a token attends to, and the KV cache.
//! - `torch`: a PyTorch model's tensor names (`TorchFormat`) and weights (`TorchWeights`), for layers that a user
//!   defines.
//! - `flags`: command-line flags for programs that take a model, with the feature `flags`.
//! - `error`: this crate's errors.

mod attention;
mod error;
mod export;
mod families;
#[cfg(feature = "flags")]
pub mod flags;
mod generation;
mod lora;
mod model;
mod parameters;
mod torch;

pub use attention::{DocumentStarts, KeyValueCache, Scope};
pub use error::ModelError;
pub use families::{Activations, Block, Embeddings, Head, Samples};
pub use generation::{Generation, GenerationError, Sampling};
pub use lora::Lora;
pub use model::{LanguageModel, Logits, Tokens};
pub use torch::{TorchFormat, TorchWeights};
