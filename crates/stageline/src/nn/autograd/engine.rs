//! The backends that this program is built with, tensors as theirs, and operations of our own in their graphs.

use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::ops::{Backward, NodeGuard, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend};
use burn::tensor::{Int, Tensor};

/// A backend that this program is built with.
pub(crate) trait Engine: Backend {
    /// A tensor of a graph without burn's own checkpointing, if it is this backend's.
    fn tracked<const D: usize>(tensor: Tensor<D>) -> Option<FloatTensor<Autodiff<Self>>>;
    /// A tensor of indices, if it is this backend's, as it is used beside a graph and without one.
    fn indices<const D: usize>(tensor: Tensor<D, Int>) -> Option<IntTensor<Self>>;
    /// A tensor of no graph, if it is this backend's.
    fn plain<const D: usize>(tensor: Tensor<D>) -> Option<FloatTensor<Self>>;
    fn of_tracked<const D: usize>(tensor: FloatTensor<Autodiff<Self>>) -> Tensor<D>;
    fn of_plain<const D: usize>(tensor: FloatTensor<Self>) -> Tensor<D>;
}

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

/// What a function makes for the backend whose tensors it is given: each is asked in turn, until one gives something.
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

/// The output of an operation of our own, in the graph of its inputs, with what its backward needs.
pub(crate) fn recorded<B: Engine, O: Backward<B, N>, const N: usize, const D: usize>(
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
