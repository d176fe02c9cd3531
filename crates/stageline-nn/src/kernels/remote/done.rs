//! Executes the kernels of layers on a server of CPUs or GPUs, as clients on other hosts request them ([`Served`]).

use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::server::CustomOpRegistry;
use burn_ir::{BackendIr, CustomOpIr, HandleContainer};

use super::{ServedKernels, name};
use crate::kernels::Kernels;
use crate::kernels::attention_blocks::AttentionHeads;
use crate::kernels::variants::{GeluForm, Norm, Normalisation};

/// A backend whose kernels a server executes for clients on other hosts. The values that a forward keeps for its
/// backward stay in the server's memory, as tensors to which the client has handles. The methods convert these values
/// to such tensors and back.
pub trait Served: Kernels + BackendIr {
    /// Returns the kind of the kernels (for CPUs or for GPUs) that the server uses on a device. The server reports this
    /// kind to its clients.
    fn kernels(device: &Device<Self>) -> ServedKernels;

    /// Converts the moments of a normalisation's input rows to one tensor `[rows, 2]` in f32: each row's mean, which is
    /// 0 for RMS normalisation, and the reciprocal of its standard deviation or root mean square.
    fn sent_moments(moments: Self::Moments) -> FloatTensor<Self>;

    /// Converts the tensor `[rows, 2]` that [`sent_moments`](Self::sent_moments) returned to the moments of a
    /// normalisation of the kind `norm`.
    fn received_moments(moments: FloatTensor<Self>, norm: Norm) -> Self::Moments;

    /// Returns the output tensors of a client's request for causal attention, given what [`Kernels::causal_attention`]
    /// returned: first the output of attention, and then the tensors that the backward needs, except attention's input.
    fn sent_attention(output: FloatTensor<Self>, attended: Self::Attended) -> Vec<FloatTensor<Self>>;

    /// Returns the gradient of causal attention's input. `kept` has the tensors to which the client kept handles for
    /// the backward, and `gradient` is the gradient of the output. `starts` has the position of the first key in each
    /// query's document; it is `None` if the backward does not need it.
    fn received_attention(
        kept: Vec<FloatTensor<Self>>,
        starts: Option<IntTensor<Self>>,
        heads: AttentionHeads,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// An operation that a client on another host requested from this server, and all tensors that the server stores, among
/// them the operation's inputs.
struct Call<'a, B: BackendIr> {
    tensors: &'a mut HandleContainer<B::Handle>,
    asked: &'a CustomOpIr,
}

/// Gives access to the inputs and scalar arguments of the operation that a client on another host requested from this
/// server. An input must be taken at most once, because the server may drop a tensor when it is taken.
impl<B: BackendIr> Call<'_, B> {
    /// Takes the float tensor that is input number `index` (from 0) of the operation that a client requested from this
    /// server, and returns it.
    fn float(&mut self, index: usize) -> FloatTensor<B> {
        self.tensors.get_float_tensor::<B>(&self.asked.inputs[index])
    }

    /// Takes the float tensor that is input number `index` (from 0) of the operation that a client requested from this
    /// server, and returns it; `None` if the request lacks this optional input, such as a bias.
    fn optional(&mut self, index: usize) -> Option<FloatTensor<B>> {
        (index < self.asked.inputs.len()).then(|| self.float(index))
    }

    /// Takes the integer tensor that is input number `index` (from 0) of the operation that a client requested from
    /// this server, and returns it.
    fn int(&mut self, index: usize) -> IntTensor<B> {
        self.tensors.get_int_tensor::<B>(&self.asked.inputs[index])
    }

    /// Returns the number of float tensors among the inputs of the operation that a client requested from this server.
    /// The backward of attention needs it, because its float inputs come before its integer input, and their number
    /// varies.
    fn floats(&self) -> usize {
        self.asked.inputs.iter().filter(|input| input.dtype.is_float()).count()
    }

    /// Returns the scalar argument with the number `index` (from 0) of the operation that a client requested from this
    /// server.
    fn number(&self, index: usize) -> f64 {
        self.asked.scalars[index].elem()
    }

    /// Returns the form of GELU (exact or tanh) that a client requested from this server, encoded in the operation's
    /// first scalar argument.
    fn form(&self) -> GeluForm {
        if self.number(0) == 0.0 { GeluForm::Exact } else { GeluForm::Tanh }
    }

    /// Returns the kind of normalisation that a client requested from this server, encoded in the operation's first
    /// scalar argument.
    fn norm(&self) -> Norm {
        if self.number(0) == 0.0 { Norm::Layer } else { Norm::RootMeanSquare }
    }

    /// Returns the heads of the attention that a client requested from this server, encoded in the operation's three
    /// scalar arguments: the numbers of query heads, of key-value heads and of keys in the window.
    fn heads(&self) -> AttentionHeads {
        let [query, key_value, window] = [0, 1, 2].map(|index| self.number(index) as usize);
        AttentionHeads { query, key_value, window: Some(window).filter(|window| *window > 0) }
    }
}

/// The type of a function by which a server computes one operation for a client. The function takes its inputs from the
/// client's request, and returns the operation's outputs.
type Operation<B> = fn(&mut Call<B>) -> Vec<FloatTensor<B>>;

/// Adds all kernels of this crate to the operations that a server of the backend `B` executes for its clients, and
/// returns the extended registry.
pub fn operations<B: Served>(mut registry: CustomOpRegistry<B>) -> CustomOpRegistry<B> {
    let layers = elementwise::<B>().into_iter().chain(normalisations::<B>()).chain(attention_and_loss::<B>());
    for (name, operation) in layers.chain(sums::<B>()) {
        registry.register(name, move |tensors, asked, _| {
            let outputs = operation(&mut Call::<B> { tensors, asked });
            for (asked, output) in asked.outputs.iter().zip(outputs) {
                tensors.register_float_tensor::<B>(&asked.id, output);
            }
        });
    }
    registry
}

/// Returns the functions by which a server computes activation functions and rotary embeddings, each with the name by
/// which a client requests it.
fn elementwise<B: Served>() -> [(&'static str, Operation<B>); 5] {
    [
        (name::GELU, |call| vec![B::gelu_of(&call.float(0), call.form())]),
        (name::GELU_TO_INPUT, |call| vec![B::gelu_to_input(&call.float(0), &call.float(1), call.form())]),
        (name::SWIGLU, |call| vec![B::swiglu(&call.float(0), &call.float(1))]),
        (name::SWIGLU_TO_INPUTS, |call| B::swiglu_to_inputs(&call.float(0), &call.float(1), &call.float(2)).into()),
        (name::ROTATED, |call| vec![B::rotated(&call.float(0), &call.float(1), &call.float(2))]),
    ]
}

/// Returns the functions by which a server computes normalisations of rows and their gradients, each with the name by
/// which a client requests it.
fn normalisations<B: Served>() -> [(&'static str, Operation<B>); 3] {
    [
        (name::LAYER_NORM, |call| {
            let norm = Normalisation { kind: call.norm(), epsilon: call.number(1) as f32 };
            let beta = call.optional(2);
            let (output, moments) = B::normalised(&call.float(0), &call.float(1), beta.as_ref(), norm);
            vec![output, B::sent_moments(moments)]
        }),
        (name::LAYER_NORM_TO_INPUT, |call| {
            let (norm, moments) = (call.norm(), call.float(2));
            let moments = B::received_moments(moments, norm);
            vec![B::normalised_to_input(&call.float(0), &call.float(1), &moments, &call.float(3), norm)]
        }),
        (name::LAYER_NORM_TO_PARAMETERS, |call| {
            // The mean that an RMS normalisation sends is 0, so both kinds have the same gradients of parameters.
            let moments = B::received_moments(call.float(1), Norm::Layer);
            B::normalised_to_parameters(&call.float(0), &moments, &call.float(2)).into()
        }),
    ]
}

/// Returns the functions by which a server computes causal attention, the cross-entropy and their gradients, each with
/// the name by which a client requests it.
fn attention_and_loss<B: Served>() -> [(&'static str, Operation<B>); 4] {
    [
        (name::CAUSAL_ATTENTION, |call| {
            let starts = (call.asked.inputs.len() > 1).then(|| call.int(1));
            let (output, attended) = B::causal_attention(&call.float(0), call.heads(), starts.as_ref());
            B::sent_attention(output, attended)
        }),
        (name::CAUSAL_ATTENTION_TO_INPUT, |call| {
            let last = call.floats() - 1;
            let kept = (0..last).map(|index| call.float(index)).collect();
            let gradient = call.float(last);
            let starts = (call.asked.inputs.len() > last + 1).then(|| call.int(last + 1));
            vec![B::received_attention(kept, starts, call.heads(), gradient)]
        }),
        (name::CROSS_ENTROPY, |call| B::cross_entropy(&call.float(0), &call.int(1)).into()),
        (name::CROSS_ENTROPY_TO_LOGITS, |call| {
            let targets = call.int(1);
            vec![B::cross_entropy_to_logits(&call.float(0), &targets, &call.float(2), &call.float(3))]
        }),
    ]
}

/// Returns the functions by which a server computes matrix products of linear layers and their gradients, gradients of
/// embedding tables and sums of squares, each with the name by which a client requests it.
fn sums<B: Served>() -> [(&'static str, Operation<B>); 6] {
    [
        (name::SUM_OF_SQUARES, |call| vec![B::sum_of_squares(&call.float(0))]),
        (name::PRODUCT, |call| {
            let bias = call.optional(2);
            vec![B::product(call.float(0), call.float(1), bias)]
        }),
        (name::TO_INPUT, |call| vec![B::to_input(call.float(0), call.float(1))]),
        (name::TO_WEIGHT, |call| vec![B::to_weight(call.float(0), call.float(1))]),
        (name::TO_BIAS, |call| vec![B::to_bias(call.float(0))]),
        (name::TO_TABLE, |call| vec![B::to_table(call.float(0), call.float(1), call.int(2))]),
    ]
}
