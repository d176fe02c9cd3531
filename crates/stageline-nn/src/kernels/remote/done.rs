//! Executes the kernels of layers on a server of CPU devices, as clients on other hosts request them.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::server::CustomOpRegistry;
use burn::tensor::TensorData;
use burn_ir::{BackendIr, CustomOpIr, HandleContainer};

use super::name;
use crate::kernels::Kernels;
use crate::kernels::attention_blocks::{AttentionHeads, weights_of_a_head};
use crate::kernels::cpu::causal_attention;
use crate::kernels::cpu::numbers::numbers;
use crate::kernels::products::Products;
use crate::kernels::variants::{GeluForm, Norm, Normalisation};

type Float = FloatTensor<Flex>;

/// An operation that a client on another host requested from this server of CPU devices, and all tensors that the
/// server stores, among them the operation's inputs.
struct Call<'a> {
    tensors: &'a mut HandleContainer<<Flex as BackendIr>::Handle>,
    asked: &'a CustomOpIr,
}

/// Gives access to the inputs and scalar arguments of the operation that a client on another host requested from this
/// server. An input must be taken at most once, because the server may drop a tensor when it is taken.
impl Call<'_> {
    /// Takes the float tensor that is input number `index` (from 0) of the operation that a client requested from this
    /// server, and returns it.
    fn float(&mut self, index: usize) -> Float {
        self.tensors.get_float_tensor::<Flex>(&self.asked.inputs[index])
    }

    /// Takes the float tensor that is input number `index` (from 0) of the operation that a client requested from this
    /// server, and returns it; `None` if the request lacks this optional input, such as a bias.
    fn optional(&mut self, index: usize) -> Option<Float> {
        (index < self.asked.inputs.len()).then(|| self.float(index))
    }

    /// Takes the integer tensor that is input number `index` (from 0) of the operation that a client requested from
    /// this server, and returns it.
    fn int(&mut self, index: usize) -> IntTensor<Flex> {
        self.tensors.get_int_tensor::<Flex>(&self.asked.inputs[index])
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

/// Adds all kernels of this crate to the operations that a server of CPU devices executes for its clients, and returns
/// the extended registry.
pub fn operations(mut registry: CustomOpRegistry<Flex>) -> CustomOpRegistry<Flex> {
    let mut add = |name: &str, operation: fn(&mut Call) -> Vec<Float>| {
        registry.register(name, move |tensors, asked, _| {
            let outputs = operation(&mut Call { tensors, asked });
            for (asked, output) in asked.outputs.iter().zip(outputs) {
                tensors.register_float_tensor::<Flex>(&asked.id, output);
            }
        });
    };
    add(name::GELU, |call| vec![Flex::gelu_of(&call.float(0), call.form())]);
    add(name::GELU_TO_INPUT, |call| vec![Flex::gelu_to_input(&call.float(0), &call.float(1), call.form())]);
    add(name::SWIGLU, |call| vec![Flex::swiglu(&call.float(0), &call.float(1))]);
    add(name::SWIGLU_TO_INPUTS, |call| Flex::swiglu_to_inputs(&call.float(0), &call.float(1), &call.float(2)).into());
    add(name::ROTATED, |call| vec![Flex::rotated(&call.float(0), &call.float(1), &call.float(2))]);
    add(name::LAYER_NORM, |call| {
        let norm = Normalisation { kind: call.norm(), epsilon: call.number(1) as f32 };
        let beta = call.optional(2);
        let (output, moments) = Flex::normalised(&call.float(0), &call.float(1), beta.as_ref(), norm);
        vec![output, moments]
    });
    add(name::LAYER_NORM_TO_INPUT, |call| {
        let norm = call.norm();
        vec![Flex::normalised_to_input(&call.float(0), &call.float(1), &call.float(2), &call.float(3), norm)]
    });
    add(name::LAYER_NORM_TO_PARAMETERS, |call| {
        Flex::normalised_to_parameters(&call.float(0), &call.float(1), &call.float(2)).into()
    });
    add(name::CAUSAL_ATTENTION, |call| {
        let starts = (call.asked.inputs.len() > 1).then(|| call.int(1));
        let (output, (_, weights)) = Flex::causal_attention(&call.float(0), call.heads(), starts.as_ref());
        let weights = weights.concat();
        let size = weights.len();
        vec![output, Float::from_data(TensorData::new(weights, [size]))]
    });
    add(name::CAUSAL_ATTENTION_TO_INPUT, |call| {
        let (input, weights, gradient) = (call.float(0).to_contiguous(), call.float(1), call.float(2));
        let weights_per_head = weights_of_a_head(input.shape()[1], call.heads());
        let weights: Vec<_> = numbers(&weights).chunks_exact(weights_per_head.max(1)).collect();
        vec![causal_attention::to_input(&input, call.heads(), &weights, &gradient.to_contiguous())]
    });
    add(name::CROSS_ENTROPY, |call| Flex::cross_entropy(&call.float(0), &call.int(1)).into());
    add(name::CROSS_ENTROPY_TO_LOGITS, |call| {
        let targets = call.int(1);
        vec![Flex::cross_entropy_to_logits(&call.float(0), &targets, &call.float(2), &call.float(3))]
    });
    add(name::SUM_OF_SQUARES, |call| vec![Flex::sum_of_squares(&call.float(0))]);
    add(name::PRODUCT, |call| {
        let bias = call.optional(2);
        vec![Flex::product(call.float(0), call.float(1), bias)]
    });
    add(name::TO_INPUT, |call| vec![Flex::to_input(call.float(0), call.float(1))]);
    add(name::TO_WEIGHT, |call| vec![Flex::to_weight(call.float(0), call.float(1))]);
    add(name::TO_BIAS, |call| vec![Flex::to_bias(call.float(0))]);
    registry
}
