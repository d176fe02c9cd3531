//! This crate's kernels on devices of remote hosts: a client's requests, and their execution on a server.
//!
//! Input: handles of tensors that are on the server. Output: handles of the results, which stay on the server. Each
//! kernel is one custom operation of burn's remote protocol, so a stage computes the same bits on another host as on
//! this one. The client must know the server's kernels ([`ServedKernels`]), because they decide what a forward pass
//! saves for its backward pass. On a device whose kernels are unknown, burn's own operations are used, and the forward
//! pass reports this as a fallback. This folder must not read tensors back to this host. Nor must it open connections,
//! which `stageline` does.
//!
//! - `name`: the names of the operations.
//! - `served_kernels`: the kernels of the connected devices of remote hosts.
//! - `serve`: the execution of the kernels on a server (`Served`).
//! - `cpu`, `gpu`: the values that the kernels of CPUs and of GPUs save for their backward passes, converted to tensors
//!   that a client holds handles to, and back.

#[cfg(all(feature = "serve", feature = "flex"))]
mod cpu;
#[cfg(all(feature = "serve", feature = "gpu"))]
mod gpu;
pub mod name;
#[cfg(feature = "serve")]
pub mod serve;
mod served_kernels;

pub use served_kernels::{ServedKernels, set_kernels};

use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::backend::{Remote, TensorMetadata};
use burn::remote::CustomOpClient;
use burn::tensor::{DType, Shape};
use burn_ir::{CustomOpIr, ScalarIr, TensorIr};

use crate::engine::Engine;
use crate::forward::fallback::{Reason, report_fallback};
use crate::kernels::Kernels;
use crate::kernels::attention_blocks::{AttentionHeads, weights_of_a_head};
use crate::kernels::declared;
use crate::kernels::products::{Products, added_up};
use crate::kernels::variants::{GeluForm, Norm, Normalisation};
use crate::params::widest_float;
use served_kernels::kernels_of;

/// Number of 64-bit words that encode a server's 32-byte id in messages to other hosts.
pub const ID_WORDS: usize = 4;

type Float = FloatTensor<Remote>;

/// Requests the operation `name` from the server of a device on another host, and returns the operation's output
/// tensors. `outputs` lists the shapes and dtypes of these tensors.
///
/// The function does not wait for the results: burn sends the request, and the server computes requests in order.
pub fn ask<const N: usize>(
    device: &Device<Remote>,
    name: &'static str,
    inputs: Vec<TensorIr>,
    scalars: Vec<ScalarIr>,
    outputs: [(Shape, DType); N],
) -> [Float; N] {
    let client = CustomOpClient::new(device);
    let outputs = outputs.map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype));
    let made = client.register(CustomOpIr::with_scalars(name, &inputs, &outputs, scalars));
    made.try_into().unwrap_or_else(|_| panic!("an operation has as many outputs as were requested"))
}

fn ir(tensor: &Float) -> TensorIr {
    tensor.clone().into_ir()
}

fn like(tensor: &Float) -> (Shape, DType) {
    (tensor.shape(), tensor.dtype())
}

/// Returns the shape `[rows, 2]` and the dtype f32, for an output with two values per row of `tensor`, such as the
/// row's mean and 1 / standard deviation.
fn pairs(tensor: &Float) -> (Shape, DType) {
    let shape = tensor.shape();
    (Shape::new([rows(&shape), 2]), DType::F32)
}

/// Returns the number of rows of a tensor with the shape `shape`: the product of all dimensions except the last.
fn rows(shape: &Shape) -> usize {
    shape[..shape.num_dims() - 1].iter().product()
}

/// Returns the shape and dtype of the attention weights that a remote server's CPU saves for the backward pass: one f32
/// vector for all query heads of all samples; `None` if the backward pass computes them again. `shape` is the shape of
/// attention's input.
fn weights(shape: &Shape, heads: AttentionHeads) -> Option<(Shape, DType)> {
    let (samples, of_a_head) = (shape[0], weights_of_a_head(shape[1], heads));
    (of_a_head > 0).then(|| (Shape::new([samples * heads.query * of_a_head]), DType::F32))
}

/// Returns the shape and dtype of causal attention's packed input, derived from `gradient`, the gradient with respect
/// to its output, `[batch, length, query heads x size]`.
fn input_of(gradient: &Float, heads: AttentionHeads) -> (Shape, DType) {
    let shape = gradient.shape();
    (Shape::new([shape[0], shape[1], shape[2] / heads.query * heads.columns()]), gradient.dtype())
}

/// Encodes attention's heads as three scalar arguments of a request to a server: the numbers of query heads, key-value
/// heads and keys in the window (0 for no window).
fn scalars(heads: AttentionHeads) -> Vec<ScalarIr> {
    let numbers = [heads.query, heads.key_value, heads.window.unwrap_or(0)];
    numbers.map(|number| ScalarIr::UInt(number as u64)).to_vec()
}

impl Products for Remote {
    fn product(input: Float, weight: Float, bias: Option<Float>) -> Float {
        let device = input.device();
        if kernels_of(&device).is_none() {
            return Self::linear(input, weight, bias);
        }
        let shape = Shape::new([input.shape()[0], weight.shape()[1]]);
        let dtype = input.dtype();
        let inputs = [input, weight].into_iter().chain(bias).map(Float::into_ir).collect();
        let [output] = ask(&device, name::PRODUCT, inputs, Vec::new(), [(shape, dtype)]);
        output
    }

    fn to_input(weight: Float, gradient: Float) -> Float {
        let device = gradient.device();
        if kernels_of(&device).is_none() {
            return Self::linear_x_backward(weight, gradient);
        }
        let output = (Shape::new([gradient.shape()[0], weight.shape()[0]]), gradient.dtype());
        let [output] = ask(&device, name::TO_INPUT, vec![weight.into_ir(), gradient.into_ir()], Vec::new(), [output]);
        output
    }

    fn to_weight(input: Float, gradient: Float) -> Float {
        let device = gradient.device();
        if kernels_of(&device).is_none() {
            return Self::linear_weight_backward(input, gradient);
        }
        let output = (Shape::new([input.shape()[1], gradient.shape()[1]]), gradient.dtype());
        let [output] = ask(&device, name::TO_WEIGHT, vec![input.into_ir(), gradient.into_ir()], Vec::new(), [output]);
        output
    }

    fn to_bias(gradient: Float) -> Float {
        let device = gradient.device();
        if kernels_of(&device).is_none() {
            return Self::linear_bias_backward(gradient);
        }
        let output = (Shape::new([gradient.shape()[1]]), gradient.dtype());
        let [output] = ask(&device, name::TO_BIAS, vec![gradient.into_ir()], Vec::new(), [output]);
        output
    }

    fn to_table(table: Float, gradient: Float, indices: IntTensor<Self>) -> Float {
        let device = gradient.device();
        if kernels_of(&device).is_none() {
            return added_up::<Self>(table, gradient, indices);
        }
        let output = (table.shape(), gradient.dtype());
        let inputs = vec![table.into_ir(), gradient.into_ir(), indices.into_ir()];
        let [output] = ask(&device, name::TO_TABLE, inputs, Vec::new(), [output]);
        output
    }
}

/// Handles to the tensors that a remote server saves for the backward pass of causal attention, which differ between
/// CPU and GPU kernels.
#[derive(Clone, Debug)]
pub struct Attended {
    /// Handles to the float tensors on the server that causal attention's backward pass needs:
    ///
    /// - from a CPU, attention's input and, unless the backward pass computes them again, one vector with the attention
    ///   weights of all query heads of all samples
    /// - from a GPU with FlashAttention, attention's input, its output and the log-sum-exp of each query's scores
    /// - from a GPU with heads too large for FlashAttention, attention's output and the tensors that `stored` describes
    kept: Vec<Float>,
    /// Position where each query's document begins, `[batch, length]`, counted from 0 in the sample; `None` for samples
    /// of one document, and if the backward pass does not need the positions.
    starts: Option<IntTensor<Remote>>,
}

/// Returns the shapes and dtypes of three tensors that a remote GPU saves for the backward pass of attention if its
/// heads are too large for FlashAttention: the queries, keys and values of all heads; the unnormalised attention
/// weights; and the reciprocal of each query's sum of weights.
fn stored(input: &Float, heads: AttentionHeads) -> [(Shape, DType); 3] {
    let (shape, dtype) = like(input);
    let (batch, length, size) = (shape[0], shape[1], shape[2] / heads.columns());
    let (grouped, queries) = (batch * heads.key_value, heads.group() * length);
    [
        (Shape::new([batch * heads.columns(), length, size]), dtype),
        (Shape::new([grouped, queries, length]), dtype),
        (Shape::new([grouped, queries, 1]), DType::F32),
    ]
}

impl Kernels for Remote {
    type Moments = Float;
    type Attended = Attended;

    fn obstacle(device: &Device<Remote>, dtype: DType) -> Option<Reason> {
        let is_taken = match kernels_of(device) {
            None => return Some(Reason::UnknownServer),
            Some(ServedKernels::Cpu) => dtype == DType::F32,
            Some(ServedKernels::Gpu { .. }) => matches!(dtype, DType::F32 | DType::BF16 | DType::F16),
        };
        (!is_taken).then_some(Reason::Type(dtype))
    }

    fn largest_head(device: &Device<Remote>) -> Option<usize> {
        match kernels_of(device)? {
            ServedKernels::Gpu { largest_head } => Some(largest_head),
            ServedKernels::Cpu => None,
        }
    }

    fn gelu_of(input: &Float, form: GeluForm) -> Float {
        let scalars = vec![ScalarIr::UInt(form as u64)];
        let [output] = ask(&input.device(), name::GELU, vec![ir(input)], scalars, [like(input)]);
        output
    }

    fn gelu_to_input(input: &Float, gradient: Float, form: GeluForm) -> Float {
        let (inputs, scalars) = (vec![ir(input), gradient.into_ir()], vec![ScalarIr::UInt(form as u64)]);
        let [output] = ask(&input.device(), name::GELU_TO_INPUT, inputs, scalars, [like(input)]);
        output
    }

    fn swiglu(gate: &Float, up: &Float) -> Float {
        let [output] = ask(&gate.device(), name::SWIGLU, vec![ir(gate), ir(up)], Vec::new(), [like(gate)]);
        output
    }

    fn swiglu_to_inputs(gate: Float, up: Float, gradient: &Float) -> [Float; 2] {
        let (device, output) = (gate.device(), like(&gate));
        let inputs = vec![gate.into_ir(), up.into_ir(), ir(gradient)];
        ask(&device, name::SWIGLU_TO_INPUTS, inputs, Vec::new(), [output.clone(), output])
    }

    fn joined(parts: [&Float; 3], angles: [&Float; 2]) -> Float {
        let (device, shape, dtype) = (parts[0].device(), parts[0].shape(), parts[0].dtype());
        let columns = parts.iter().map(|part| part.shape()[2]).sum();
        let inputs = parts.into_iter().chain(angles).map(ir).collect();
        let output = (Shape::new([shape[0], shape[1], columns]), dtype);
        let [output] = ask(&device, name::JOINED, inputs, Vec::new(), [output]);
        output
    }

    fn join_to_parts(gradient: &Float, columns: [usize; 3], angles: [&Float; 2]) -> [Float; 3] {
        let (shape, dtype) = (gradient.shape(), gradient.dtype());
        let inputs = [gradient].into_iter().chain(angles).map(ir).collect();
        let scalars = columns.map(|columns| ScalarIr::UInt(columns as u64)).to_vec();
        let outputs = columns.map(|columns| (Shape::new([shape[0], shape[1], columns]), dtype));
        ask(&gradient.device(), name::JOIN_TO_PARTS, inputs, scalars, outputs)
    }

    fn normalised(input: &Float, gamma: &Float, beta: Option<&Float>, norm: Normalisation) -> (Float, Float) {
        let inputs = [input, gamma].into_iter().chain(beta).map(ir).collect();
        let scalars = vec![ScalarIr::UInt(norm.kind as u64), ScalarIr::Float(norm.epsilon.into())];
        ask(&input.device(), name::LAYER_NORM, inputs, scalars, [like(input), pairs(input)]).into()
    }

    fn normalised_to_input(input: &Float, gamma: &Float, moments: &Float, gradient: Float, norm: Norm) -> Float {
        let inputs = vec![ir(input), ir(gamma), ir(moments), gradient.into_ir()];
        let scalars = vec![ScalarIr::UInt(norm as u64)];
        let [output] = ask(&input.device(), name::LAYER_NORM_TO_INPUT, inputs, scalars, [like(input)]);
        output
    }

    fn normalised_to_parameters(input: &Float, moments: &Float, gradient: &Float) -> [Float; 2] {
        let shape = input.shape();
        let output = || (Shape::new([shape[shape.num_dims() - 1]]), gradient.dtype());
        let inputs = [input, moments, gradient].map(ir).to_vec();
        ask(&input.device(), name::LAYER_NORM_TO_PARAMETERS, inputs, Vec::new(), [output(), output()])
    }

    fn causal_attention(input: &Float, heads: AttentionHeads, starts: Option<&IntTensor<Remote>>) -> (Float, Attended) {
        let (device, shape, size) = (input.device(), input.shape(), input.shape()[2] / heads.columns());
        let output = (Shape::new([shape[0], shape[1], size * heads.query]), input.dtype());
        let inputs = [ir(input)].into_iter().chain(starts.map(|starts| starts.clone().into_ir())).collect();
        match kernels_of(&device) {
            Some(ServedKernels::Gpu { largest_head }) if size <= largest_head => {
                let logarithms = (Shape::new([shape[0], heads.query, shape[1]]), DType::F32);
                let outputs = [output, logarithms];
                let [output, logarithms] = ask(&device, name::CAUSAL_ATTENTION, inputs, scalars(heads), outputs);
                let kept = vec![input.clone(), output.clone(), logarithms];
                (output, Attended { kept, starts: starts.cloned() })
            }
            Some(ServedKernels::Gpu { largest_head: largest }) => {
                report_fallback(declared::name::CAUSAL_ATTENTION, || Reason::LargeHead { size, largest });
                let [parts, weights, shares] = stored(input, heads);
                let outputs = [output, parts, weights, shares];
                let kept = ask(&device, name::CAUSAL_ATTENTION, inputs, scalars(heads), outputs);
                (kept[0].clone(), Attended { kept: kept.to_vec(), starts: None })
            }
            // `None` does not occur here, because attention is only requested from a device with known kernels.
            Some(ServedKernels::Cpu) | None => {
                let Some(weights) = weights(&shape, heads) else {
                    let [output] = ask(&device, name::CAUSAL_ATTENTION, inputs, scalars(heads), [output]);
                    return (output, Attended { kept: vec![input.clone()], starts: starts.cloned() });
                };
                let [output, weights] = ask(&device, name::CAUSAL_ATTENTION, inputs, scalars(heads), [output, weights]);
                (output, Attended { kept: vec![input.clone(), weights], starts: None })
            }
        }
    }

    fn causal_attention_to_input(attended: &Attended, heads: AttentionHeads, gradient: &Float) -> Float {
        let Attended { kept, starts } = attended;
        let starts = starts.iter().map(|starts| starts.clone().into_ir());
        let inputs = kept.iter().chain([gradient]).map(ir).chain(starts).collect();
        let (device, input) = (gradient.device(), input_of(gradient, heads));
        let [output] = ask(&device, name::CAUSAL_ATTENTION_TO_INPUT, inputs, scalars(heads), [input]);
        output
    }

    fn cross_entropy(logits: &Float, targets: &IntTensor<Remote>) -> [Float; 2] {
        let inputs = vec![ir(logits), targets.clone().into_ir()];
        let sum = (Shape::new([1]), DType::F32);
        let kept = match kernels_of(&logits.device()) {
            // A GPU saves the log-likelihoods of all classes.
            Some(ServedKernels::Gpu { .. }) => (logits.shape(), DType::F32),
            Some(ServedKernels::Cpu) | None => pairs(logits),
        };
        ask(&logits.device(), name::CROSS_ENTROPY, inputs, Vec::new(), [sum, kept])
    }

    fn cross_entropy_to_logits(logits: Float, targets: &IntTensor<Remote>, scales: &Float, gradient: &Float) -> Float {
        let (device, output) = (logits.device(), like(&logits));
        let inputs = vec![logits.into_ir(), targets.clone().into_ir(), ir(scales), ir(gradient)];
        let [output] = ask(&device, name::CROSS_ENTROPY_TO_LOGITS, inputs, Vec::new(), [output]);
        output
    }

    fn sum_of_squares(tensor: &Float) -> Float {
        let dtype = widest_float(&Self::of_plain::<1>(tensor.clone()).device());
        if kernels_of(&tensor.device()).is_none() {
            let wide = Self::float_cast(tensor.clone(), dtype);
            return Self::float_sum(Self::float_mul(wide.clone(), wide));
        }
        let sum = (Shape::new([1]), DType::from(dtype));
        let [sum] = ask(&tensor.device(), name::SUM_OF_SQUARES, vec![ir(tensor)], Vec::new(), [sum]);
        sum
    }
}
