//! A float tensor whose rank is not part of its type.

use burn::tensor::Tensor;
use burn::tensor::kind::BridgeTensor;

/// A float tensor of any rank.
#[derive(Clone)]
pub(crate) struct AnyTensor(BridgeTensor);

impl AnyTensor {
    /// Forgets the rank of a tensor.
    pub(crate) fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        Self(tensor.into_bridge())
    }

    /// Returns the tensor, which must have the rank that it was made with.
    pub(crate) fn tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_bridge(self.0)
    }
}
