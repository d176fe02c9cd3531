//! Layer and RMS normalisation as one operation of burn's autodiff graph, with parameter gradients that can be
//! deferred.

use std::marker::PhantomData;

use burn::backend::TensorMetadata;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::module::{Param, ParamId};
use burn::tensor::Tensor;

use crate::autograd::sum::Sum;
use crate::autograd::weight_gradients::{may_put_off, put_off_any};
use crate::engine::recorded;
use crate::kernels::declared::name;
use crate::kernels::variants::{Norm, Normalisation};
use crate::kernels::{Kernels, beside, computes, is_empty, tracked};

/// A layer or RMS normalisation as a single operation in burn's autodiff graph.
#[derive(Debug)]
struct Normalised;

/// Values that a normalisation's forward pass saves for its backward pass.
#[derive(Clone, Debug)]
struct State<B: Kernels> {
    input: FloatTensor<B>,
    gamma: FloatTensor<B>,
    moments: B::Moments,
    kind: Norm,
    /// Parameter ids of the normalisation's scale and shift; `None` for a parameter whose gradient must not be deferred
    /// until after the backward pass.
    put_off: [Option<ParamId>; 2],
}

impl<B: Kernels, const N: usize> Backward<B, N> for Normalised {
    type State = State<B>;

    fn backward(self, ops: Ops<State<B>, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let State { input, gamma, moments, kind, put_off: ids } = ops.state;
        let mut parents = ops.parents.into_iter();
        let [of_input, of_gamma, of_beta] = [parents.next(), parents.next(), parents.next()].map(Option::flatten);
        let to_parameters = {
            let (input, moments, gradient) = (input.clone(), moments.clone(), gradient.clone());
            move || B::normalised_to_parameters(&input, &moments, &gradient)
        };
        let waits = put_off_any(ids, || {
            let to_parameters = to_parameters.clone();
            move |sum: &mut Sum| {
                for (id, gradient) in ids.into_iter().zip(to_parameters()) {
                    if let Some(id) = id {
                        sum.add(id, B::of_plain::<1>(gradient));
                    }
                }
            }
        });
        let nodes = [of_gamma, of_beta].into_iter().zip(waits).map(|(node, waits)| node.filter(|_| !waits));
        let nodes: Vec<_> = nodes.collect();
        if nodes.iter().any(Option::is_some) {
            for (node, gradient) in nodes.into_iter().zip(to_parameters()) {
                if let Some(node) = node {
                    gradients.register::<B>(node.id, gradient);
                }
            }
        }
        // The kernel may overwrite the gradient if nothing else uses it.
        drop(to_parameters);
        // The input gradient comes last, because burn fuses the operations into fewer kernels if the sums over columns
        // follow the sums over rows.
        if let Some(node) = of_input {
            gradients.register::<B>(node.id, B::normalised_to_input(&input, &gamma, &moments, gradient, kind));
        }
    }
}

/// Normalises `input` with the backend's kernel, with the scale `gamma` and the optional shift `beta`. `norm` is the
/// kind of normalisation and its epsilon. Returns `None` if there is no kernel for the tensors' dtypes or device.
pub fn normalised<B: Kernels, const D: usize>(
    _: PhantomData<B>,
    input: &Tensor<D>,
    gamma: &Param<Tensor<1>>,
    beta: Option<&Param<Tensor<1>>>,
    norm: Normalisation,
) -> Option<Tensor<D>> {
    let (scale, shift) = (gamma, beta);
    let (gamma, beta) = (scale.val(), shift.map(Param::val));
    if is_empty(input) {
        return None;
    }
    let types: Vec<_> = [input.dtype(), gamma.dtype()].into_iter().chain(beta.as_ref().map(Tensor::dtype)).collect();
    let name = match norm.kind {
        Norm::Layer => name::LAYER_NORM,
        Norm::RootMeanSquare => name::RMS_NORM,
    };
    if !input.device().is_autodiff() {
        let (gamma, beta) = (beside::<B, _, D>(name, input, B::plain(gamma))?, beta.map(B::plain));
        let input = B::plain(input.clone()).filter(|input| computes::<B>(name, &input.device(), &types))?;
        let beta = match &beta {
            Some(beta) => Some(beta.as_ref()?),
            None => None,
        };
        let (output, _) = B::normalised(&input, &gamma, beta, norm);
        return Some(B::of_plain(output));
    }
    let (scales, shifts) = (gamma.clone(), beta.clone());
    let (gamma, gamma_node) = beside::<B, _, D>(name, input, B::tracked(gamma))?.into_parts();
    let (input, input_node) = tracked::<B, D>(name, input)?.into_parts();
    let beta = match beta {
        Some(beta) => Some(B::tracked(beta)?.into_parts()),
        None => None,
    };
    if !computes::<B>(name, &input.device(), &types) {
        return None;
    }
    let shift_id = shift.zip(shifts.as_ref()).and_then(|(shift, shifts)| may_put_off(shift, shifts));
    let put_off = [may_put_off(scale, &scales), shift_id];
    Some(match beta {
        None => {
            let (output, moments) = B::normalised(&input, &gamma, None, norm);
            let state = State::<B> { input, gamma, moments, kind: norm.kind, put_off };
            recorded::<B, _, 2, D>(Normalised, [input_node, gamma_node], state, output)
        }
        Some((beta, beta_node)) => {
            let (output, moments) = B::normalised(&input, &gamma, Some(&beta), norm);
            let state = State::<B> { input, gamma, moments, kind: norm.kind, put_off };
            recorded::<B, _, 3, D>(Normalised, [input_node, gamma_node, beta_node], state, output)
        }
    })
}
