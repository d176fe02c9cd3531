//! [`Linear`]: a linear layer with burn's parameters. Its backward pass can defer the weight gradients, so that a
//! pipeline computes them later.

use std::marker::PhantomData;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param, ParamId};
use burn::tensor::module::linear;
use burn::tensor::{Shape, Tensor};

use crate::autograd::sum::Sum;
use crate::autograd::weight_gradients::{may_put_off, put_off_any};
use crate::engine::{of_their_backend, recorded};
use crate::forward::flops::report_flops;
use crate::kernels::products::Products;

/// A linear layer like [burn's](burn::nn::Linear), which returns `input x weight + bias`. Its backward pass can be
/// split into input and weight gradients.
///
/// Inputs of more than two dimensions are reshaped to one matrix, so that the layer needs a single matrix product
/// instead of one for each entry of the batch.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
/// use stageline_nn::Linear;
///
/// let device = Device::flex();
/// let layer = Linear::from(LinearConfig::new(3, 2).init(&device));
/// assert_eq!(layer.forward(Tensor::<3>::ones([4, 5, 3], &device)).dims(), [4, 5, 2]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Linear {
    /// The weight matrix of a linear layer, with shape `[inputs, outputs]`.
    pub weight: Param<Tensor<2>>,
    /// The bias that a linear layer adds to its output, with shape `[outputs]`; `None` for a layer without bias.
    pub bias: Option<Param<Tensor<1>>>,
}

impl From<burn::nn::Linear> for Linear {
    fn from(burn::nn::Linear { weight, bias, .. }: burn::nn::Linear) -> Self {
        Self { weight, bias }
    }
}

impl ModuleDisplay for Linear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [inputs, outputs] = self.weight.shape().dims();
        content.add("inputs", &inputs).add("outputs", &outputs).add("bias", &self.bias.is_some()).optional()
    }
}

impl Linear {
    /// Computes the output `[..., outputs]` of a linear layer for an input `[..., inputs]`.
    ///
    /// # Panics
    /// Panics if the last dimension of the input is not the number of inputs of the weight.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (inputs, [expected, outputs]) = (input.dims()[D - 1], self.weight.shape().dims());
        assert_eq!(inputs, expected, "the input has {inputs} features, and the layer takes {expected}");
        report_flops(2.0 * input.shape().num_elements() as f64 * outputs as f64);
        of_their_backend!(split, &input, &self.weight, self.bias.as_ref())
            .or_else(|| of_their_backend!(untracked, &input, &self.weight, self.bias.as_ref()))
            .unwrap_or_else(|| linear(input, self.weight.val(), self.bias.as_ref().map(Param::val)))
    }
}

/// The operation that represents the whole linear layer in burn's autodiff graph. Its backward pass can be split into
/// input and weight gradients.
#[derive(Debug)]
struct SplitLinear;

/// The values that the forward pass of a linear layer keeps for its backward pass.
#[derive(Clone, Debug)]
struct State<B: Backend> {
    /// The rows of the layer's input; `None` if the weight is frozen, whose gradient alone needs them.
    input: Option<FloatTensor<B>>,
    weight: FloatTensor<B>,
    /// The parameter ids of the linear layer's weight and bias; `None` for a parameter whose gradient must not be
    /// deferred until after the backward pass.
    put_off: [Option<ParamId>; 2],
    /// The shape of a linear layer's input before the input was reshaped to rows.
    shape: Shape,
}

/// Returns a tensor `[..., columns]` reshaped to a matrix `[rows, columns]`, because one product with this matrix is
/// faster than one product for each entry of the batch.
fn rows<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let shape = tensor.shape();
    let last = shape.num_dims() - 1;
    B::float_reshape(tensor, Shape::new([shape[..last].iter().product(), shape[last]]))
}

impl<B: Products, const N: usize> Backward<B, N> for SplitLinear {
    type State = State<B>;

    fn backward(self, ops: Ops<State<B>, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = rows::<B>(gradients.consume::<B>(&ops.node));
        let State { input, weight, put_off: [weight_id, bias_id], shape } = ops.state;
        let mut parents = ops.parents.into_iter();
        let [of_input, of_weight, of_bias] = [parents.next(), parents.next(), parents.next()].map(Option::flatten);
        let waits = put_off_any([weight_id, bias_id], || {
            let (input, gradient) = (input.clone(), gradient.clone());
            move |sum: &mut Sum| {
                if let (Some(id), Some(input)) = (weight_id, input) {
                    sum.add_by::<B, 2>(id, |sum| B::added_to_weight(sum, input, gradient.clone()));
                }
                if let Some(id) = bias_id {
                    sum.add(id, B::of_plain::<1>(B::to_bias(gradient)));
                }
            }
        });
        // The memory of the input is freed before the gradient of the input is allocated.
        if let (Some(node), Some(input)) = (of_weight.filter(|_| !waits[0]), input) {
            gradients.register::<B>(node.id, B::to_weight(input, gradient.clone()));
        }
        if let Some(node) = of_bias.filter(|_| !waits[1]) {
            gradients.register::<B>(node.id, B::to_bias(gradient.clone()));
        }
        if let Some(node) = of_input {
            let to_input = B::to_input(weight, gradient);
            gradients.register::<B>(node.id, B::float_reshape(to_input, shape));
        }
    }
}

/// Applies a linear layer to tensors that autodiff does not track, as in an evaluation. Returns `None` if the tensors
/// are not plain tensors of the backend `B`.
fn untracked<B: Products, const D: usize>(
    _: PhantomData<B>,
    input: &Tensor<D>,
    weight: &Param<Tensor<2>>,
    bias: Option<&Param<Tensor<1>>>,
) -> Option<Tensor<D>> {
    let (input, weight) = (B::plain(input.clone())?, B::plain(weight.val())?);
    let bias = match bias {
        Some(bias) => Some(B::plain(bias.val())?),
        None => None,
    };
    let mut shape = input.shape();
    shape[D - 1] = weight.shape()[1];
    let output = B::product(rows::<B>(input), weight, bias);
    Some(B::of_plain(B::float_reshape(output, shape)))
}

/// Applies a linear layer with a backward pass that can be split into input and weight gradients. Returns `None` if the
/// tensors are not autodiff tensors of the backend `B`, or if burn's own gradient checkpointing is on.
fn split<B: Products, const D: usize>(
    _: PhantomData<B>,
    input: &Tensor<D>,
    weight: &Param<Tensor<2>>,
    bias: Option<&Param<Tensor<1>>>,
) -> Option<Tensor<D>> {
    let (input, input_node) = B::tracked(input.clone())?.into_parts();
    let (weights, biases) = (weight.val(), bias.map(Param::val));
    let (values, weight_node) = B::tracked(weights.clone())?.into_parts();
    let tracked_bias = match &biases {
        Some(biases) => Some(B::tracked(biases.clone())?.into_parts()),
        None => None,
    };
    let weight_id = may_put_off(weight, &weights);
    let bias_id = bias.zip(biases.as_ref()).and_then(|(bias, biases)| may_put_off(bias, biases));
    let shape = input.shape();
    let input = rows::<B>(input);
    let mut output_shape = shape.clone();
    output_shape[D - 1] = values.shape()[1];
    let kept = weights.is_tracked().then(|| input.clone());
    let state = State::<B> { input: kept, weight: values.clone(), put_off: [weight_id, bias_id], shape };
    let output_of = |bias| B::float_reshape(B::product(input, values, bias), output_shape);
    Some(match tracked_bias {
        None => recorded::<B, _, 2, D>(SplitLinear, [input_node, weight_node], state, output_of(None)),
        Some((bias, bias_node)) => {
            let nodes = [input_node, weight_node, bias_node];
            recorded::<B, _, 3, D>(SplitLinear, nodes, state, output_of(Some(bias)))
        }
    })
}
