//! A float tensor whose rank is not part of its type, so that tensors of several ranks fit into one collection.

use burn::tensor::Tensor;
use burn::tensor::kind::BridgeTensor;

/// A float tensor of any rank; the caller remembers the rank.
#[derive(Clone)]
pub struct AnyTensor(BridgeTensor);

impl AnyTensor {
    /// Wraps a tensor and forgets its rank.
    pub fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        Self(tensor.into_bridge())
    }

    /// Returns the wrapped tensor; `D` must be the rank that it was made with.
    pub fn tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_bridge(self.0)
    }
}
