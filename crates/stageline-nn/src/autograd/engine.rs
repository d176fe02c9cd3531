//! The backends that this crate is built with, and our own operations in their autodiff graphs.
//!
//! burn's tensors have no backend in their type. An operation of our own needs the primitive tensor of one backend, so
//! every backend of the build is tried in turn.

use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::ops::{Backward, NodeGuard, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend};
use burn::tensor::{Int, Tensor};

/// A backend that this crate is built with, and the conversion of burn's tensors to its primitives and back.
pub trait Engine: Backend {
    /// Returns this backend's primitive of an autodiff tensor. Returns `None` if the tensor is not an autodiff tensor
    /// of this backend, or if burn's own gradient checkpointing is on.
    fn tracked<const D: usize>(tensor: Tensor<D>) -> Option<FloatTensor<Autodiff<Self>>>;
    /// Returns this backend's primitive of an integer tensor, from an autodiff device or not; `None` if the tensor is
    /// not of this backend.
    fn indices<const D: usize>(tensor: Tensor<D, Int>) -> Option<IntTensor<Self>>;
    /// Returns this backend's primitive of a float tensor outside autodiff; `None` if the tensor is an autodiff tensor
    /// or not of this backend.
    fn plain<const D: usize>(tensor: Tensor<D>) -> Option<FloatTensor<Self>>;
    /// Returns the burn tensor of rank `D` that wraps an autodiff primitive of this backend.
    fn of_tracked<const D: usize>(tensor: FloatTensor<Autodiff<Self>>) -> Tensor<D>;
    /// Returns the burn tensor of rank `D` that wraps a primitive of this backend outside autodiff.
    fn of_plain<const D: usize>(tensor: FloatTensor<Self>) -> Tensor<D>;
}

/// Implements [`Engine`] for one of the backends that this crate is built with.
macro_rules! engine {
    ($backend:ty) => {
        impl Engine for $backend {
            fn tracked<const D: usize>(tensor: Tensor<D>) -> Option<FloatTensor<Autodiff<Self>>> {
                tensor.try_into_primitive::<Autodiff<Self>>().ok()
            }

            fn indices<const D: usize>(tensor: Tensor<D, Int>) -> Option<IntTensor<Self>> {
                let beside = tensor.clone().try_into_primitive::<Autodiff<Self>>().ok();
                beside.or_else(|| tensor.try_into_primitive::<Self>().ok())
            }

            fn plain<const D: usize>(tensor: Tensor<D>) -> Option<FloatTensor<Self>> {
                tensor.try_into_primitive::<Self>().ok()
            }

            fn of_tracked<const D: usize>(tensor: FloatTensor<Autodiff<Self>>) -> Tensor<D> {
                Tensor::from_primitive::<Autodiff<Self>>(tensor)
            }

            fn of_plain<const D: usize>(tensor: FloatTensor<Self>) -> Tensor<D> {
                Tensor::from_primitive::<Self>(tensor)
            }
        }
    };
}

#[cfg(feature = "flex")]
engine!(burn::backend::Flex);
#[cfg(feature = "cuda")]
engine!(burn::backend::Cuda);
#[cfg(feature = "remote")]
engine!(burn::backend::Remote);

/// Calls a generic function with every backend of this build in turn until one call returns `Some`, and returns that;
/// `None` if no call does. Each backend recognises its own tensors.
macro_rules! of_their_backend {
    ($function:path, $($argument:expr),+ $(,)?) => {{
        let found = None;
        #[cfg(feature = "flex")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Flex>, $($argument),+));
        #[cfg(feature = "cuda")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Cuda>, $($argument),+));
        #[cfg(feature = "remote")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Remote>, $($argument),+));
        found
    }};
}

pub(crate) use of_their_backend;

/// Records one of this crate's own operations in the autodiff graph of its inputs, and returns the operation's output
/// as a tensor of that graph.
///
/// The graph keeps `state` for the operation's backward, unless autodiff tracks none of the inputs.
pub fn recorded<B: Engine, O: Backward<B, N>, const N: usize, const D: usize>(
    operation: O,
    inputs: [NodeGuard; N],
    state: O::State,
    output: FloatTensor<B>,
) -> Tensor<D> {
    B::of_tracked(match operation.prepare::<NoCheckpointing>(inputs).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(state, output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    })
}
