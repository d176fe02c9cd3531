//! Layers whose backward is split: the gradient of the input at once, those of the weights when the plan says.
//!
//! They are burn's layers to the bit, in a pipeline and out of it, and have its parameters: make them `from` burn's. In a plan
//! with split backwards, whatever else a stage is made of has all its gradients at once, and the second half is then shorter
//! (Qi et al., 2023, *Zero Bubble Pipeline Parallelism*, [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)).
//! On devices other than the host they are burn's own, whose backward is whole.

mod embedding;
mod linear;

pub use embedding::Embedding;
pub use linear::Linear;
