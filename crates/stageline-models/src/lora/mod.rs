//! LoRA adapters of a language model's linear layers (Hu et al., 2021,
//! [arXiv:2106.09685](https://arxiv.org/abs/2106.09685)).
//!
//! - `settings`: the rank and the scale of adapters, and whether they are new or read from a folder (`Lora`).
//! - `config`: the `adapter_config.json` of a folder.
//! - `attach`: adds adapters to the layers of a model.

mod attach;
mod config;
mod settings;

pub(crate) use attach::Adapters;
pub use settings::Lora;
