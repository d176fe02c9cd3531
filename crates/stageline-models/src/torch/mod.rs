//! The weights of PyTorch models for models that the user defines: their names and layouts ([`TorchFormat`]), and a
//! folder with them ([`TorchWeights`]).

mod format;
mod weights;

pub use format::TorchFormat;
pub use weights::TorchWeights;
