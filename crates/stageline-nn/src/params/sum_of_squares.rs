//! The sum of squares of a tensor's elements.

use burn::tensor::{FloatDType, Tensor};

/// Returns the sum of squares of all elements of a tensor, in f64, with shape `[1]`, on the tensor's device. Outside
/// autodiff, the order of the additions does not depend on the number of cores.
pub fn sum_of_squares<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    if let Some(sum) = crate::kernels::sum_of_squares(&tensor) {
        return sum;
    }
    tensor.cast(FloatDType::F64).square().sum()
}
