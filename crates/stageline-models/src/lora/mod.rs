//! LoRA adapters of a language model's linear layers (Hu et al., 2021,
//! [arXiv:2106.09685](https://arxiv.org/abs/2106.09685)).
//!
//! - `settings`: the adapters' rank and scale, and whether they are new or read from a folder (`Lora`).
//! - `config`: an adapter folder's `adapter_config.json`. `scope`: the layers for which it has adapters.
//! - `attach`: attaches adapters to a model's layers.

mod attach;
mod config;
mod scope;
mod settings;

pub(crate) use attach::{Adapters, fnv1a};
pub use settings::Lora;
