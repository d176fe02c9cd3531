//! The trait [`Kernels`] of backends that compute each operation of a layer in one call, and functions that dispatch a
//! layer's operation to a backend's kernel.

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

/// A backend with kernels for the operations of layers, such as attention. A kernel computes an operation in one call,
/// where burn would run several operations. All tensors are the backend's primitive tensors, and autodiff does not
/// track them. A kernel may write over a tensor that it takes by value, if nothing else uses the tensor's memory.
pub trait Kernels: Products {
    /// The mean and 1 / standard deviation of each input row, which a normalisation saves for its backward pass.
    type Moments: Clone + Debug + Send + 'static;
    /// Values that causal attention's forward pass saves for its backward pass.
    type Attended: Clone + Debug + Send + 'static;

    /// Returns why a device's kernels cannot compute in the dtype `dtype`; `None` if they can.
    fn obstacle(device: &Device<Self>, dtype: DType) -> Option<Reason>;

    /// Returns the largest head dimension for which a device computes causal attention without storing the scores.
    /// Returns `None` if the device's kernels handle all head dimensions in the same way.
    fn largest_head(device: &Device<Self>) -> Option<usize>;

    /// Returns the activation function GELU of every element of `input`. `form` selects the exact function or its tanh
    /// approximation.
    fn gelu_of(input: &FloatTensor<Self>, form: GeluForm) -> FloatTensor<Self>;

    /// Returns the gradient of the loss with respect to GELU's input. `gradient` is the gradient with respect to GELU's
    /// output.
    fn gelu_to_input(input: &FloatTensor<Self>, gradient: FloatTensor<Self>, form: GeluForm) -> FloatTensor<Self>;

    /// Returns SwiGLU, `gate x sigmoid(gate) x up`, of every element of two inputs of the same shape.
    fn swiglu(gate: &FloatTensor<Self>, up: &FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns the gradients of the loss with respect to `gate` and `up`, the inputs of SwiGLU. `gradient` is the
    /// gradient with respect to SwiGLU's output.
    fn swiglu_to_inputs(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gradient: &FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    /// Concatenates queries, keys and values, each `[batch, length, heads x size]`, by their columns to `[batch,
    /// length, all columns]`. Rotates every head of the queries and keys by angles that depend on the position. Element
    /// `i` and element `i + size / 2` of a head form a rotated pair. `angles` are the cosines and sines, in f32, each
    /// `[length, size / 2]`.
    fn joined(parts: [&FloatTensor<Self>; 3], angles: [&FloatTensor<Self>; 2]) -> FloatTensor<Self>;

    /// Returns the gradients of the loss with respect to the queries, keys and values that [`joined`](Self::joined)
    /// concatenated. `gradient` is the gradient with respect to the concatenated output. `columns` are the numbers of
    /// columns of the queries, keys and values. `angles` are the cosines and the negated sines of the forward pass's
    /// angles.
    fn join_to_parts(
        gradient: &FloatTensor<Self>,
        columns: [usize; 3],
        angles: [&FloatTensor<Self>; 2],
    ) -> [FloatTensor<Self>; 3];

    /// Normalises an input `[..., width]` with a scale `gamma` and an optional shift `beta`, each `[width]`. Returns
    /// the output, and the mean and 1 / standard deviation of each input row. `norm` is the kind of normalisation and
    /// its epsilon.
    fn normalised(
        input: &FloatTensor<Self>,
        gamma: &FloatTensor<Self>,
        beta: Option<&FloatTensor<Self>>,
        norm: Normalisation,
    ) -> (FloatTensor<Self>, Self::Moments);

    /// Returns the gradient of the loss with respect to a normalisation's input. `gradient` is the gradient with
    /// respect to the output. `moments` are the mean and 1 / standard deviation of each input row, as the forward pass
    /// returned them.
    fn normalised_to_input(
        input: &FloatTensor<Self>,
        gamma: &FloatTensor<Self>,
        moments: &Self::Moments,
        gradient: FloatTensor<Self>,
        norm: Norm,
    ) -> FloatTensor<Self>;

    /// Returns the gradients of the loss with respect to a normalisation's scale and shift, each `[width]`. `gradient`
    /// is the gradient with respect to the output. `moments` are the mean and 1 / standard deviation of each input row,
    /// as the forward pass returned them.
    fn normalised_to_parameters(
        input: &FloatTensor<Self>,
        moments: &Self::Moments,
        gradient: &FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    /// Computes causal attention of an input `[batch, length, (query heads + 2 x key-value heads) x size]`. Returns the
    /// output, `[batch, length, query heads x size]`, and the values that the backward pass needs. `starts`, `[batch,
    /// length]`, contains, for each query, the position where its document begins, counted from 0 in the sample; `None`
    /// for samples of one document.
    fn causal_attention(
        input: &FloatTensor<Self>,
        heads: AttentionHeads,
        starts: Option<&IntTensor<Self>>,
    ) -> (FloatTensor<Self>, Self::Attended);

    /// Returns the gradient of the loss with respect to causal attention's input. `gradient` is the gradient with
    /// respect to the output. `attended` are the values that the forward pass saved.
    fn causal_attention_to_input(
        attended: &Self::Attended,
        heads: AttentionHeads,
        gradient: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Computes the cross-entropy of logits `[rows, classes]` with target classes `[rows]`. Returns its sum over the
    /// rows, `[1]`, and a tensor for the backward pass, which differs between backends. Targets that are
    /// [`MASKED`](crate::kernels::masked_targets::MASKED) add nothing.
    fn cross_entropy(logits: &FloatTensor<Self>, targets: &IntTensor<Self>) -> [FloatTensor<Self>; 2];

    /// Returns the gradient of the loss with respect to the logits of a cross-entropy. `gradient` is the gradient with
    /// respect to the cross-entropy, which is summed over the rows. `kept` is the tensor that the forward pass returned
    /// for the backward pass.
    fn cross_entropy_to_logits(
        logits: FloatTensor<Self>,
        targets: &IntTensor<Self>,
        kept: &FloatTensor<Self>,
        gradient: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Returns the sum of the squares of all elements of a tensor, `[1]`, in f64, or in f32 on a device without f64.
    /// The order of the additions does not depend on the number of cores.
    fn sum_of_squares(tensor: &FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Returns why a device's kernels cannot compute an operation in the dtype `dtype`. If `head_size` is given, the result
/// may also be that the head is too large for attention that stores no scores. Returns `None` if nothing prevents it,
/// or if this crate was built without the device's backend.
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

/// Whether a device's kernels support an operation on tensors of the dtypes `types`. If not, records the reason as a
/// fallback of this thread's forward pass, which the stage reports.
pub(crate) fn computes<B: Kernels>(operation: &'static str, device: &Device<B>, types: &[DType]) -> bool {
    let differ = types.iter().any(|dtype| *dtype != types[0]);
    let obstacle = if differ { Some(Reason::Types(types.to_vec())) } else { B::obstacle(device, types[0]) };
    let Some(reason) = obstacle else { return true };
    report_fallback(operation, || reason);
    false
}

/// Returns the primitive tensor of the backend `B` inside an autodiff tensor; `None` if the tensor is of another
/// backend or without autodiff.
///
/// Also returns `None` if burn's own gradient checkpointing is on, and records this as the reason why no kernel of this
/// crate computes `operation` in the running forward pass.
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

/// Checks a secondary input of `operation`, such as a bias, and returns it unchanged. `tensor` is the secondary input
/// as a tensor of the backend `B`, or `None` if it is of another backend.
///
/// If the main input, `input`, is of the backend `B` but the secondary one is not, no kernel can compute the operation.
/// This is recorded as a fallback of the running forward pass, because the inputs are on different devices.
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

/// Returns the primitive tensor of the backend `B` inside `indices`, an integer input of `operation`; `None` if
/// `indices` is of another backend.
///
/// If the main input, `input`, is of the backend `B` but `indices` is not, no kernel can compute the operation. This is
/// recorded as a fallback of the running forward pass, because the inputs are on different devices.
pub(crate) fn indices<B: Engine, const D: usize, const E: usize>(
    operation: &'static str,
    input: &Tensor<D>,
    indices: &Tensor<E, Int>,
) -> Option<IntTensor<B>> {
    beside::<B, _, D>(operation, input, B::indices(indices.clone()))
}

/// Whether a tensor has no elements; burn's GPU kernels reject such tensors.
pub(crate) fn is_empty<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.shape().num_elements() == 0
}

/// Runs an operation with a kernel of the backend `B`, and returns the output. `inputs` lists the main input first. On
/// an autodiff device the operation is recorded in the autodiff graph, with the backward pass `backward`. The closure
/// `forward` calls the kernel, and returns the output and the state that the backward pass needs. `name` is the
/// operation's name in messages.
///
/// Returns `None` if the main input is empty or of another backend. Also returns `None`, and reports the reason as a
/// fallback of the running forward pass, in these cases:
///
/// - Another input is of another backend.
/// - The backend has no kernel for the inputs' dtypes or device.
/// - burn's own gradient checkpointing is on.
pub fn operation<B: Kernels, O: Backward<B, N>, const N: usize, const D: usize, const E: usize>(
    name: &'static str,
    backward: O,
    inputs: [&Tensor<D>; N],
    forward: impl FnOnce([FloatTensor<B>; N]) -> (FloatTensor<B>, O::State),
) -> Option<Tensor<E>> {
    let main = inputs[0];
    if is_empty(main) {
        return None;
    }
    let is_taken = |device: &Device<B>| computes::<B>(name, device, &inputs.map(Tensor::dtype));
    let others = &inputs[1..];
    if !main.device().is_autodiff() {
        let mut plain = vec![B::plain(main.clone())?];
        for other in others {
            plain.push(beside::<B, _, D>(name, main, B::plain((*other).clone()))?);
        }
        let plain: [_; N] = plain.try_into().expect("there is one for each input");
        return is_taken(&plain[0].device()).then(|| B::of_plain(forward(plain).0));
    }
    let mut parts = vec![tracked::<B, D>(name, main)?.into_parts()];
    for other in others {
        parts.push(beside::<B, _, D>(name, main, B::tracked((*other).clone()))?.into_parts());
    }
    let (tensors, nodes): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    let tensors: [_; N] = tensors.try_into().expect("there is one for each input");
    if !is_taken(&tensors[0].device()) {
        return None;
    }
    let (output, state) = forward(tensors);
    let nodes = nodes.try_into().unwrap_or_else(|_| unreachable!("there is one for each input"));
    Some(recorded::<B, O, N, E>(backward, nodes, state, output))
}
