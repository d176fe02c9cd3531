//! A float tensor whose rank is not part of its type, so that tensors of several ranks fit into one collection and one
//! closure ([`AnyTensor`]).

use burn::tensor::Tensor;
use burn::tensor::kind::BridgeTensor;

/// A float tensor whose rank is not part of its Rust type, so that tensors of different ranks fit into one collection.
/// The caller must remember the rank to get the tensor back.
#[derive(Clone)]
pub struct AnyTensor(BridgeTensor);

impl AnyTensor {
    /// Wraps a float tensor and erases its rank from the type.
    pub fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        Self(tensor.into_bridge())
    }

    /// Returns the wrapped tensor as a burn tensor of rank `D`. This must be the rank that the tensor had when it was
    /// wrapped. The rank is not checked: with another `D`, later operations fail or give wrong results (see
    /// [`unranked`](Self::unranked)).
    pub fn tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_bridge(self.0)
    }

    /// Returns the wrapped tensor as a `Tensor<1>`, whatever its real rank is. The result is for operations that treat
    /// all elements alike, such as a cast, a read, or a sum with a tensor of the same shape.
    ///
    /// burn passes the tensor with its real shape to the backend. Some operations use the rank of the Rust type
    /// instead: those that name a dimension, return sizes as an array, or create a tensor from data. On the returned
    /// tensor they panic, or use only the first dimension of its shape.
    pub fn unranked(self) -> Tensor<1> {
        Tensor::from_bridge(self.0)
    }

    /// Applies the elementwise `operation` to the wrapped tensor, and returns its result as an `AnyTensor` again.
    /// `operation` sees the tensor as a `Tensor<1>`, whatever its real rank is, and must keep the shape (see
    /// [`unranked`](Self::unranked)).
    pub fn map(self, operation: impl FnOnce(Tensor<1>) -> Tensor<1>) -> Self {
        Self::new(operation(self.unranked()))
    }

    /// Detaches the wrapped tensor from its autodiff graph, and returns it as a leaf of a new graph. The leaf gets a
    /// gradient only if `trained` is set.
    pub fn leaf(self, trained: bool) -> Self {
        let leaf = |tensor: Tensor<1>| tensor.inner().autodiff();
        self.map(|tensor| if trained { leaf(tensor).require_grad() } else { leaf(tensor) })
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use super::*;
    use crate::test_numbers::uniform;

    #[test]
    fn operations_on_all_elements_do_not_need_the_rank() {
        let random = || uniform([2, 3, 4], 0.0..1.0, &Device::flex());
        let (one, other) = (random(), random());
        let same = |got: AnyTensor, expected: Tensor<3>| {
            assert_eq!(got.tensor::<3>().into_data(), expected.into_data());
        };
        let any = || AnyTensor::new(one.clone());
        same(any().map(|tensor| tensor.mul_scalar(0.3)), one.clone().mul_scalar(0.3));
        same(any().map(|tensor| tensor.clamp(-0.5, 0.5)), one.clone().clamp(-0.5, 0.5));
        same(any().map(|tensor| tensor.cast(FloatDType::BF16)), one.clone().cast(FloatDType::BF16));
        same(any().map(|tensor| tensor.zeros_like()), one.zeros_like());
        same(any().map(|tensor| tensor + AnyTensor::new(other.clone()).unranked()), one.clone() + other);
        assert_eq!(any().unranked().into_data(), one.into_data());
    }

    #[test]
    fn a_leaf_gets_a_gradient_of_its_own_shape_if_it_is_trained() {
        let device = Device::flex().autodiff();
        let value = Tensor::<2>::ones([2, 3], &device).require_grad().mul_scalar(2.0);
        assert!(!AnyTensor::new(value.clone()).leaf(false).tensor::<2>().is_tracked());
        let leaf = AnyTensor::new(value).leaf(true).tensor::<2>();
        let gradient = leaf.grad(&leaf.clone().sum().backward()).unwrap();
        assert_eq!(gradient.into_data(), Tensor::<2>::ones([2, 3], &device).inner().into_data());
    }
}
