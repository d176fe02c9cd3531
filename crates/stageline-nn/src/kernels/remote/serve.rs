//! Executes the kernels of layers on a server's CPUs or GPUs, at the request of clients on other hosts ([`Served`]).

use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::server::CustomOpRegistry;
use burn_ir::{BackendIr, CustomOpIr, HandleContainer};

use super::{ServedKernels, name};
use crate::kernels::Kernels;
use crate::kernels::attention_blocks::AttentionHeads;
use crate::kernels::variants::{GeluForm, Norm, Normalisation};

/// A backend whose kernels a server executes for clients on other hosts. What a forward pass saves for its backward
/// pass stays in the server's memory, as tensors to which the client holds handles. This trait's methods convert the
/// kernels' saved values to such tensors and back.
pub trait Served: Kernels + BackendIr {
    /// Returns the kind of kernels (for CPUs or for GPUs) that the server uses on a device. The server reports this
    /// kind to its clients.
    fn kernels(device: &Device<Self>) -> ServedKernels;

    /// Converts the moments of a normalisation's input rows to one tensor `[rows, 2]` in f32. The first column is the
    /// mean (0 for RMS normalisation), and the second is 1 / standard deviation (or 1 / root mean square).
    fn sent_moments(moments: Self::Moments) -> FloatTensor<Self>;

    /// Converts the tensor `[rows, 2]` that [`sent_moments`](Self::sent_moments) returned back to the moments of a
    /// normalisation of the kind `norm`.
    fn received_moments(moments: FloatTensor<Self>, norm: Norm) -> Self::Moments;

    /// Converts the results of causal attention's forward pass, [`Kernels::causal_attention`], to the tensors that the
    /// server returns to a client: attention's output, then the saved tensors that the backward pass needs, except
    /// attention's input, which the client already has a handle to.
    fn sent_attention(output: FloatTensor<Self>, attended: Self::Attended) -> Vec<FloatTensor<Self>>;

    /// Runs causal attention's backward pass for a client on another host, and returns the gradient with respect to
    /// attention's input. `gradient` is the gradient with respect to the output. `kept` are the tensors saved for the
    /// backward pass, in the order of the client's request. `starts`, `[batch, length]`, contains the position where
    /// each query's document begins, counted from 0 in the sample; `None` if the backward pass does not need it.
    fn received_attention(
        kept: Vec<FloatTensor<Self>>,
        starts: Option<IntTensor<Self>>,
        heads: AttentionHeads,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// A client's request for one operation (`asked`), with the server's tensors, among which are the operation's inputs.
/// Each input may be read only once, because the server may free a tensor when it is read.
struct Call<'a, B: BackendIr> {
    tensors: &'a mut HandleContainer<B::Handle>,
    asked: &'a CustomOpIr,
}

impl<B: BackendIr> Call<'_, B> {
    fn float(&mut self, index: usize) -> FloatTensor<B> {
        self.tensors.get_float_tensor::<B>(&self.asked.inputs[index])
    }

    /// Returns the float input `index` (from 0) of the requested operation; `None` if the request lacks this optional
    /// input, such as a bias.
    fn optional(&mut self, index: usize) -> Option<FloatTensor<B>> {
        (index < self.asked.inputs.len()).then(|| self.float(index))
    }

    fn int(&mut self, index: usize) -> IntTensor<B> {
        self.tensors.get_int_tensor::<B>(&self.asked.inputs[index])
    }

    /// Returns the number of float inputs of the requested operation, which varies for the backward pass of attention.
    /// Its integer input comes after them.
    fn floats(&self) -> usize {
        self.asked.inputs.iter().filter(|input| input.dtype.is_float()).count()
    }

    /// Returns the scalar argument `index` (from 0) of the requested operation.
    fn number(&self, index: usize) -> f64 {
        self.asked.scalars[index].elem()
    }

    fn form(&self) -> GeluForm {
        if self.number(0) == 0.0 { GeluForm::Exact } else { GeluForm::Tanh }
    }

    fn norm(&self) -> Norm {
        if self.number(0) == 0.0 { Norm::Layer } else { Norm::RootMeanSquare }
    }

    /// Decodes attention's heads from three scalar arguments of a client's request: the numbers of query heads,
    /// key-value heads and keys in the window (0 for no window).
    fn heads(&self) -> AttentionHeads {
        let [query, key_value, window] = [0, 1, 2].map(|index| self.number(index) as usize);
        AttentionHeads { query, key_value, window: Some(window).filter(|window| *window > 0) }
    }
}

/// A handler on the compute server of a remote device: runs one kernel for a client, such as GELU. Reads the kernel's
/// inputs through the client's request ([`Call`]), and returns the outputs.
type Operation<B> = fn(&mut Call<B>) -> Vec<FloatTensor<B>>;

/// Registers all kernels of this crate in `registry`, as operations that a server with the backend `B` runs for its
/// clients, and returns the registry.
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

fn elementwise<B: Served>() -> [(&'static str, Operation<B>); 6] {
    [
        (name::GELU, |call| vec![B::gelu_of(&call.float(0), call.form())]),
        (name::GELU_TO_INPUT, |call| vec![B::gelu_to_input(&call.float(0), call.float(1), call.form())]),
        (name::SWIGLU, |call| vec![B::swiglu(&call.float(0), &call.float(1))]),
        (name::SWIGLU_TO_INPUTS, |call| B::swiglu_to_inputs(call.float(0), call.float(1), &call.float(2)).into()),
        (name::JOINED, |call| {
            let [query, key, value, cosines, sines] = [0, 1, 2, 3, 4].map(|index| call.float(index));
            vec![B::joined([&query, &key, &value], [&cosines, &sines])]
        }),
        (name::JOIN_TO_PARTS, |call| {
            let [gradient, cosines, sines] = [0, 1, 2].map(|index| call.float(index));
            let columns = [0, 1, 2].map(|index| call.number(index) as usize);
            B::join_to_parts(&gradient, columns, [&cosines, &sines]).into()
        }),
    ]
}

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
            vec![B::normalised_to_input(&call.float(0), &call.float(1), &moments, call.float(3), norm)]
        }),
        (name::LAYER_NORM_TO_PARAMETERS, |call| {
            // An RMS normalisation sends means of 0, so layer normalisation gives the same parameter gradients for
            // them.
            let moments = B::received_moments(call.float(1), Norm::Layer);
            B::normalised_to_parameters(&call.float(0), &moments, &call.float(2)).into()
        }),
    ]
}

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
            vec![B::cross_entropy_to_logits(call.float(0), &targets, &call.float(2), &call.float(3))]
        }),
    ]
}

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
