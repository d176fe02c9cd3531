//! Language models for [Stageline](stageline): GPT-2 and the Llama family (Llama, Mistral, Qwen2, Qwen3, SmolLM). Each
//! model is a row of layers that a pipeline partitions into stages. Its weights are in Hugging Face's format.
//!
//! [`LanguageModel::open`] opens a model folder of the Hugging Face hub, and [`LanguageModel::row`] gives the layers:
//! the embeddings, the blocks and the head. Each stage reads its own tensors from the memory-mapped files when it is
//! built, so the whole model is never in memory. [`LanguageModel::export`] writes the trained parameters into another
//! folder, with the file names, tensor names, shapes and types of the folder they came from. [`Generation`] generates
//! text with a pipeline, which can train or generate again afterwards.
//!
//! ```no_run
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
//! For another architecture, write the layers as a [`Row`](stageline::Row). [`TorchWeights`] loads the weights of a
//! PyTorch model into these layers and exports them again. [`TorchFormat`] has the rules for PyTorch's names of the
//! parameters, and exports models that were not loaded from PyTorch.
//!
//! # Layout
//!
//! - `model`: a model with its configuration and the source of its parameters (`LanguageModel`).
//! - `generation`: the generation of text. `export`: folders that Python's libraries read.
//! - `lora`: LoRA adapters of linear layers, which are trained instead of the weights (`Lora`).
//! - `families`: the supported architectures, and their layers.
//! - `parameters`: the tensors of a model folder that store a model's parameters: their names, reading them, and the
//!   values for an export.
//! - `attention`: the tokens that a token attends to, and the cache of keys and values of earlier positions.
//! - `torch`: the names of a PyTorch model (`TorchFormat`) and its weights (`TorchWeights`), for layers that a user
//!   defines.
//! - `flags`: flags for programs that take a model, with the feature `flags`.
//! - `error`: the errors of this crate.

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
