//! The backends that this crate is built with, and functions that record this crate's own operations in their autodiff
//! graphs.
//!
//! burn's tensors have no backend in their type. An operation of this crate needs the primitive tensor of one backend,
//! so every backend of the build is tried in turn.

use std::marker::PhantomData;

use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::ops::{Backward, NodeGuard, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend};
use burn::tensor::{Int, Tensor};

/// A burn backend that this crate is compiled with: for CPUs, for GPUs, or for devices of remote hosts. The types of
/// burn's tensors do not name a backend, so this trait converts them to the backend's primitive tensors and back.
pub trait Engine: Backend {
    /// Returns the backend's primitive tensor inside a burn autodiff tensor. Returns `None` if the tensor is not an
    /// autodiff tensor of this backend, or if burn's own gradient checkpointing is on.
    fn tracked<const D: usize>(tensor: Tensor<D>) -> Option<FloatTensor<Autodiff<Self>>>;
    /// Returns the backend's primitive tensor inside a burn integer tensor, which may be on an autodiff device; `None`
    /// if the tensor is of another backend.
    fn indices<const D: usize>(tensor: Tensor<D, Int>) -> Option<IntTensor<Self>>;
    /// Returns the backend's primitive tensor inside a burn float tensor that is not on an autodiff device; `None` if
    /// the tensor is an autodiff tensor or is of another backend.
    fn plain<const D: usize>(tensor: Tensor<D>) -> Option<FloatTensor<Self>>;
    /// Converts the backend's primitive autodiff tensor to a burn tensor of rank `D`.
    fn of_tracked<const D: usize>(tensor: FloatTensor<Autodiff<Self>>) -> Tensor<D>;
    /// Converts the backend's primitive tensor, which autodiff does not track, to a burn tensor of rank `D`.
    fn of_plain<const D: usize>(tensor: FloatTensor<Self>) -> Tensor<D>;
}

/// Implements [`Engine`] for a backend, using burn's conversions between burn tensors and the backend's primitive
/// tensors.
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
#[cfg(feature = "gpu")]
engine!(burn::backend::Cube);
#[cfg(feature = "remote")]
engine!(burn::backend::Remote);

/// Calls a function that is generic over the backend with each backend of this build in turn, until one call returns
/// `Some`. Evaluates to that result, or to `None`. The function must return `None` for another backend's tensors.
macro_rules! of_their_backend {
    ($function:path, $($argument:expr),+ $(,)?) => {{
        let found = None;
        #[cfg(feature = "flex")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Flex>, $($argument),+));
        #[cfg(feature = "gpu")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Cube>, $($argument),+));
        #[cfg(feature = "remote")]
        let found = found.or_else(|| $function(std::marker::PhantomData::<burn::backend::Remote>, $($argument),+));
        found
    }};
}

pub(crate) use of_their_backend;

/// Whether two tensors are the same node of an autodiff graph. A parameter's stored tensor and its value are the same
/// node, unless the value is computed from other tensors, as with LoRA.
pub fn are_one_node<const D: usize>(one: &Tensor<D>, other: &Tensor<D>) -> bool {
    fn compared<B: Engine, const D: usize>(_: PhantomData<B>, one: &Tensor<D>, other: &Tensor<D>) -> Option<bool> {
        Some(B::tracked(one.clone())?.id() == B::tracked(other.clone())?.id())
    }
    of_their_backend!(compared, one, other).unwrap_or(false)
}

/// Records one of this crate's own operations in the autodiff graph of its `inputs`, and returns the operation's
/// `output` as a tensor of that graph.
///
/// If autodiff tracks at least one of the inputs, the graph stores `state` for the backward pass, which `operation`
/// defines.
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
