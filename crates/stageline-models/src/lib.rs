//! Language models for [Stageline](stageline): GPT-2 and the Llama family (Llama, Mistral, Qwen2, Qwen3, SmolLM), as
//! rows of layers that a pipeline partitions into stages, with weights in Hugging Face's format.
//!
//! [`LanguageModel::open`] reads a folder of the hub, and [`LanguageModel::row`] gives the layers: the embeddings, the
//! blocks and the head. Each stage reads its own tensors from the memory-mapped files when it is built, so the whole
//! model is never in memory. [`LanguageModel::export`] writes the trained parameters into another folder, with the file
//! names, tensor names, shapes and types of the folder they came from. [`Generation`] continues a text with a pipeline
//! that stays alive.
//!
//! ```no_run
//! use burn::{optim::AdamWConfig, tensor::Device};
//! use stageline::{Cut, StageConfig};
//! use stageline_models::LanguageModel;
//!
//! let model = LanguageModel::open("SmolLM-135M")?;
//! let row = model.row();
//! let config = || StageConfig::new(Device::default(), AdamWConfig::new().init(), 1e-5);
//! let mut pipeline = row.pipeline(&"0,16".parse::<Cut>()?, [config(), config()])?.build()?;
//! model.export(pipeline.snapshot()?, "SmolLM-135M-copy")?;
//! # Ok::<(), stageline::BoxError>(())
//! ```
//!
//! A model of another architecture is a row of layers of one's own. [`TorchFormat`] gives it the weights of a PyTorch
//! model, and exports its parameters for PyTorch.
//!
//! # Layout
//!
//! - `model`: a model with its configuration and the source of its parameters (`LanguageModel`).
//! - `family`: the architectures that are known, and their layers as one type each (`Family`, `Embeddings`, `Block`,
//!   `Head`).
//! - `gpt2`, `llama`: the configuration of each family, its layers, and the names of its tensors on the hub.
//! - `head`: the loss and the projection to the vocabulary, which all families share.
//! - `residual`: the residual connections of a block, which all families share.
//! - `initial`: parts of layers with their initial values.
//! - `names`: the names that parameters have as tensors of the hub.
//! - `position`: the place of a parameter in a model. `parameters`: the parameters as tensors of a folder.
//!   `lazy`: parameters that are read when they are first used. `read_lazily`: makes those of new layers so.
//! - `lora`: adapters of linear layers, which are trained in the place of the weights (`Lora`).
//! - `torch`: the names of a PyTorch model (`TorchFormat`) and its weights (`TorchWeights`), for models of one's own.
//! - `export_adapters`: writes the adapters of a pipeline as a folder of the library PEFT.
//! - `export`: writes the parameters of a pipeline as a folder of the hub, and logits as a file.
//! - `scope`: the tokens that a token attends to, in its sample, its document or the generated text (`Scope`).
//! - `cache`: keys and values of earlier positions, and the attention of new tokens to them. `generation`: the
//!   generation of text with them. `generation_config`: the settings of a folder's `generation_config.json`.
//! - `limits`: limits to the numbers of a configuration. `unsupported`: fields that no family implements.
//! - `flags`: flags for programs that take a model, with the feature `flags`.
//! - `error`: the errors of this crate.

mod cache;
mod error;
mod export;
mod export_adapters;
mod family;
#[cfg(feature = "flags")]
pub mod flags;
mod generation;
mod generation_config;
mod gpt2;
mod head;
mod initial;
mod lazy;
mod limits;
mod llama;
mod lora;
mod model;
mod names;
mod parameters;
mod position;
mod read_lazily;
mod residual;
mod scope;
mod torch;
mod unsupported;

pub use cache::KeyValueCache;
pub use error::ModelError;
pub use family::{Activations, Block, Embeddings, Head, Samples};
pub use generation::{Generation, GenerationError, Sampling};
pub use lora::Lora;
pub use model::{LanguageModel, Logits, Tokens};
pub use scope::{DocumentStarts, Scope};
pub use torch::{TorchFormat, TorchWeights};
