//! The weights of PyTorch models for models of one's own: their names and layouts ([`TorchFormat`]), and a folder with
//! them ([`TorchWeights`]).

mod format;
mod weights;

pub use format::TorchFormat;
pub use weights::TorchWeights;
