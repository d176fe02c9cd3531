//! A float tensor whose rank is not part of its type, so that tensors of several ranks fit into one collection.

use burn::tensor::Tensor;
use burn::tensor::kind::BridgeTensor;

/// A float tensor whose rank is not part of its Rust type; the caller must remember the rank to get the tensor back.
#[derive(Clone)]
pub struct AnyTensor(BridgeTensor);

impl AnyTensor {
    /// Wraps a float tensor so that its rank is no longer in the type.
    pub fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        Self(tensor.into_bridge())
    }

    /// Returns the wrapped tensor with its rank `D` in the type again; `D` must be the rank with which the tensor was
    /// wrapped.
    pub fn tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_bridge(self.0)
    }
}
