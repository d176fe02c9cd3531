//! Loads PyTorch weights into user-defined models: the tensor names and layouts ([`TorchFormat`]), and a folder with
//! the weights ([`TorchWeights`]).

mod format;
mod weights;

pub use format::TorchFormat;
pub use weights::TorchWeights;
