//! The sum of squares of a tensor's elements, from which norms are computed.

use burn::tensor::Tensor;

use crate::params::widest_float;

/// Returns the sum of squares of all elements of a tensor, with shape `[1]`, on the tensor's device. The sum is in f64,
/// or in f32 on a device without f64. For a tensor that autodiff does not track, the order of the additions does not
/// depend on the number of cores.
pub fn sum_of_squares<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    if let Some(sum) = by_kernel(&tensor) {
        return sum;
    }
    let wide = widest_float(&tensor.device());
    tensor.cast(wide).square().sum()
}

/// Returns the sum of squares of a tensor's elements, computed by a kernel of the tensor's backend. Returns `None` if
/// the tensor is empty or tracked by autodiff.
#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
fn by_kernel<const D: usize>(tensor: &Tensor<D>) -> Option<Tensor<1>> {
    use std::marker::PhantomData;

    use crate::engine::of_their_backend;
    use crate::kernels::interface::{Kernels, is_empty};

    fn on_backend<B: Kernels, const D: usize>(_: PhantomData<B>, tensor: &Tensor<D>) -> Option<Tensor<1>> {
        Some(B::of_plain(B::sum_of_squares(&B::plain(tensor.clone())?)))
    }
    if is_empty(tensor) {
        return None;
    }
    of_their_backend!(on_backend, tensor)
}
