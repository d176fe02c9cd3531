//! The trait of a backend that computes each operation of a layer in one call ([`Kernels`]), and functions that find
//! the backend of a tensor and say whether the backend's kernels can compute an operation.

use std::fmt::Debug;

use burn::backend::autodiff::ops::Backward;
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::backend::{Autodiff, DispatchDevice, TensorMetadata};
use burn::tensor::{DType, GradientCheckpointingStrategy, Int, Tensor};

use crate::engine::{Engine, recorded};
use crate::forward::fallback::{Reason, report_fallback};
use crate::kernels::attention_blocks::AttentionHeads;
use crate::kernels::products::Products;
use crate::kernels::variants::{GeluForm, Norm, Normalisation};

/// A backend with kernels, each of which computes an operation of a layer, such as attention, in one call where burn
/// would run several operations. All tensors are primitives outside autodiff.
pub trait Kernels: Products {
    /// The moments (mean and 1 / standard deviation) of each input row of a normalisation, which the backward of the
    /// normalisation needs.
    type Moments: Clone + Debug + Send + 'static;
    /// The values that the forward of causal attention keeps for its backward.
    type Attended: Clone + Debug + Send + 'static;

    /// Returns why a device's kernels cannot compute with elements of the type `dtype`; `None` if they can.
    fn obstacle(device: &Device<Self>, dtype: DType) -> Option<Reason>;

    /// Returns the largest head size, in elements, for which a device computes causal attention without storing the
    /// attention scores; `None` if the device's kernels treat heads of all sizes alike.
    fn largest_head(device: &Device<Self>) -> Option<usize>;

    /// Returns the activation function GELU of every element of the tensor `input`: exact, or approximated by a
    /// hyperbolic tangent, as `form` says.
    fn gelu_of(input: &FloatTensor<Self>, form: GeluForm) -> FloatTensor<Self>;

    /// Returns the gradient of GELU's input, given the input and the gradient of GELU's output.
    fn gelu_to_input(input: &FloatTensor<Self>, gradient: &FloatTensor<Self>, form: GeluForm) -> FloatTensor<Self>;

    /// Returns SwiGLU, `gate x sigmoid(gate) x up`, of every element of two inputs of one shape.
    fn swiglu(gate: &FloatTensor<Self>, up: &FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns the gradients of SwiGLU's two inputs, given the gradient of its output.
    fn swiglu_to_inputs(
        gate: &FloatTensor<Self>,
        up: &FloatTensor<Self>,
        gradient: &FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    /// Returns an input `[batch, length, heads x size]`, such as queries, with every head rotated by angles that depend
    /// on the position. The cosines and sines of the angles, in f32, are `[length, size / 2]`.
    fn rotated(input: &FloatTensor<Self>, cosines: &FloatTensor<Self>, sines: &FloatTensor<Self>) -> FloatTensor<Self>;

    /// Computes the normalisation of an input `[..., width]` with a scale `gamma` and, unless `None`, a shift `beta`,
    /// each `[width]`, and returns the output and the moments (mean and 1 / standard deviation) of the input's rows.
    /// `norm` is the normalisation and its epsilon.
    fn normalised(
        input: &FloatTensor<Self>,
        gamma: &FloatTensor<Self>,
        beta: Option<&FloatTensor<Self>>,
        norm: Normalisation,
    ) -> (FloatTensor<Self>, Self::Moments);

    /// Returns the gradient of a normalisation's input, given the moments (mean and 1 / standard deviation) of the
    /// input's rows and the gradient of the output.
    fn normalised_to_input(
        input: &FloatTensor<Self>,
        gamma: &FloatTensor<Self>,
        moments: &Self::Moments,
        gradient: &FloatTensor<Self>,
        norm: Norm,
    ) -> FloatTensor<Self>;

    /// Returns the gradients of a normalisation's scale and shift, each `[width]`, given the moments (mean and 1 /
    /// standard deviation) of the input's rows and the gradient of the output.
    fn normalised_to_parameters(
        input: &FloatTensor<Self>,
        moments: &Self::Moments,
        gradient: &FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    /// Computes causal attention of an input `[batch, length, (query heads + 2 x key-value heads) x size]`. Returns the
    /// output, `[batch, length, query heads x size]`, and the values that its backward needs. `starts`, `[batch,
    /// length]`, are the positions of the first key in each query's document; `None` for samples of one document.
    fn causal_attention(
        input: &FloatTensor<Self>,
        heads: AttentionHeads,
        starts: Option<&IntTensor<Self>>,
    ) -> (FloatTensor<Self>, Self::Attended);

    /// Returns the gradient of causal attention's input, given the values that the forward kept for the backward
    /// (`attended`) and the gradient of the output.
    fn causal_attention_to_input(
        attended: &Self::Attended,
        heads: AttentionHeads,
        gradient: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Computes the cross-entropy of logits `[rows, classes]` with target classes `[rows]`, and returns its sum over
    /// the rows, `[1]`, and a tensor that the backward needs. Masked targets
    /// ([`MASKED`](crate::kernels::masked_targets::MASKED)) add nothing.
    fn cross_entropy(logits: &FloatTensor<Self>, targets: &IntTensor<Self>) -> [FloatTensor<Self>; 2];

    /// Returns the gradient of the cross-entropy's logits, given the tensor that the forward kept for the backward and
    /// the gradient of the summed loss.
    fn cross_entropy_to_logits(
        logits: &FloatTensor<Self>,
        targets: &IntTensor<Self>,
        kept: &FloatTensor<Self>,
        gradient: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Returns the sum of the squares of all elements of a tensor, `[1]`, in f64, or in f32 on a device without f64.
    /// The order of the additions does not depend on the number of cores.
    fn sum_of_squares(tensor: &FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Returns the reason why the kernels of a device cannot compute an operation on elements of the type `dtype`, or
/// cannot compute attention with heads of `head_size` elements without storing its scores. Returns `None` if there is
/// no such reason, or if this crate was built without the device's backend.
pub(crate) fn obstacle(device: &burn::tensor::Device, dtype: DType, head_size: Option<usize>) -> Option<Reason> {
    fn on_backend<B: Kernels>(device: &Device<B>, dtype: DType, head_size: Option<usize>) -> Option<Reason> {
        let large_head = || {
            let (size, largest) = (head_size?, B::largest_head(device)?);
            (size > largest).then_some(Reason::LargeHead { size, largest })
        };
        B::obstacle(device, dtype).or_else(large_head)
    }
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(device) => on_backend::<burn::backend::Flex>(device, dtype, head_size),
        #[cfg(feature = "gpu")]
        DispatchDevice::Cube(device) => on_backend::<burn::backend::Cube>(device, dtype, head_size),
        #[cfg(feature = "remote")]
        DispatchDevice::Remote(device) => on_backend::<burn::backend::Remote>(device, dtype, head_size),
        _ => None,
    }
}

/// Whether the kernels of a device compute an operation on tensors with elements of the types `types`. If they do not,
/// the running forward records the reason.
pub(crate) fn computes<B: Kernels>(operation: &'static str, device: &Device<B>, types: &[DType]) -> bool {
    let differ = types.iter().any(|dtype| *dtype != types[0]);
    let obstacle = if differ { Some(Reason::Types(types.to_vec())) } else { B::obstacle(device, types[0]) };
    let Some(reason) = obstacle else { return true };
    report_fallback(operation, || reason);
    false
}

/// Returns the primitive tensor of the backend `B` inside an autodiff tensor; `None` if the tensor is of another
/// backend or without autodiff, or if burn's own gradient checkpointing is on. In the last case the running forward
/// records the reason why no kernel of this crate computes `operation`.
pub(crate) fn tracked<B: Engine, const D: usize>(
    operation: &'static str,
    tensor: &Tensor<D>,
) -> Option<FloatTensor<Autodiff<B>>> {
    if tensor.gradient_checkpointing_strategy() == Some(GradientCheckpointingStrategy::Balanced) {
        report_fallback(operation, || Reason::GradientCheckpointing);
        return None;
    }
    B::tracked(tensor.clone())
}

/// Returns `tensor` unchanged, and checks that the inputs of `operation` are of one backend. `tensor` is a further
/// input, which the caller has converted to a primitive tensor of the backend `B`; it is `None` if the further input is
/// of another backend. If it is `None` although the main input `input` is of the backend `B`, no kernel of this crate
/// can compute the operation, and the running forward records the mix of devices as the reason.
pub(crate) fn beside<B: Engine, T, const D: usize>(
    operation: &'static str,
    input: &Tensor<D>,
    tensor: Option<T>,
) -> Option<T> {
    let is_of_backend = || match input.device().is_autodiff() {
        true => tracked::<B, D>(operation, input).is_some(),
        false => B::plain(input.clone()).is_some(),
    };
    if tensor.is_none() && is_of_backend() {
        report_fallback(operation, || Reason::MixedDevices);
    }
    tensor
}

/// Returns the primitive tensor of the backend `B` inside `indices`, an integer input of `operation` such as the
/// targets of the cross-entropy; `None` if `indices` is of another backend. In that case, if the main input `input` is
/// of the backend `B`, the running forward records the mix of devices as the reason why no kernel computes `operation`.
pub(crate) fn indices<B: Engine, const D: usize, const E: usize>(
    operation: &'static str,
    input: &Tensor<D>,
    indices: &Tensor<E, Int>,
) -> Option<IntTensor<B>> {
    beside::<B, _, D>(operation, input, B::indices(indices.clone()))
}

/// Whether a tensor has no elements. burn's kernels for GPUs reject such a tensor.
pub(crate) fn is_empty<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.shape().num_elements() == 0
}

/// Runs an operation that has one input by a kernel of the backend `B` and returns its output. If the input is on an
/// autodiff device, the operation is recorded in the autodiff graph with the backward `backward`. The closure `forward`
/// calls the kernel, and returns the output and the state that the backward needs. `name` is the operation's name for
/// messages.
///
/// Returns `None` if the input is empty or of another backend, if the backend has no kernel for the input's type or
/// device, or if burn's own gradient checkpointing is on. In the last two cases the running forward records the reason.
pub fn operation<B: Kernels, O: Backward<B, 1>, const D: usize, const E: usize>(
    name: &'static str,
    backward: O,
    input: &Tensor<D>,
    forward: impl FnOnce(FloatTensor<B>) -> (FloatTensor<B>, O::State),
) -> Option<Tensor<E>> {
    if is_empty(input) {
        return None;
    }
    let types = [input.dtype()];
    if !input.device().is_autodiff() {
        let input = B::plain(input.clone()).filter(|input| computes::<B>(name, &input.device(), &types))?;
        return Some(B::of_plain(forward(input).0));
    }
    let (input, node) = tracked::<B, D>(name, input)?.into_parts();
    if !computes::<B>(name, &input.device(), &types) {
        return None;
    }
    let (output, state) = forward(input);
    Some(recorded::<B, O, 1, E>(backward, [node], state, output))
}
