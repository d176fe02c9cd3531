//! [`Linear`]: a linear layer with burn's parameters. Its weight gradients can be deferred, so that a pipeline computes
//! them later.

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
use crate::params::is_quantized;

/// A linear layer like [burn's](burn::nn::Linear), which returns `input x weight + bias`. Its backward pass can be
/// split into input and weight gradients.
///
/// Inputs of more than two dimensions are reshaped to one matrix, so that the layer needs a single matrix product
/// instead of one for each batch entry.
///
/// A weight with a LoRA adapter ([`burn::module::Lora`]; Hu et al., 2021,
/// [arXiv:2106.09685](https://arxiv.org/abs/2106.09685)) is not merged with it: the layer returns `input x base +
/// (input x a) x b x scale + bias`. So no matrix of the weight's size is created, and the frozen base needs no
/// gradient. The gradients of `a` and `b` can be deferred like those of a weight.
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
    /// The linear layer's weight matrix, with shape `[inputs, outputs]`.
    pub weight: Param<Tensor<2>>,
    /// The bias that the linear layer adds to its output, with shape `[outputs]`; `None` for a layer without bias.
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
    /// Computes the layer's output `[..., outputs]` for an input `[..., inputs]`.
    ///
    /// # Panics
    /// Panics if the last dimension of the input is not the number of inputs of the weight.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (inputs, [expected, outputs]) = (input.dims()[D - 1], self.weight.shape().dims());
        assert_eq!(inputs, expected, "the input has {inputs} features, and the layer takes {expected}");
        let rows = (input.shape().num_elements() / inputs.max(1)) as f64;
        let Some(adapter) = self.weight.adapter() else {
            report_flops(2.0 * rows * (inputs * outputs) as f64);
            return product(input, &self.weight, self.weight.val(), self.bias.as_ref());
        };
        let rank = adapter.a.shape().dims::<2>()[1];
        report_flops(2.0 * rows * (inputs * outputs + inputs * rank + rank * outputs) as f64);
        let factor = adapter.a.val();
        let base = dense(self.weight.base(), &factor);
        let reduced = product(input.clone(), &adapter.a, factor, None).mul_scalar(adapter.scale);
        product(input, &self.weight, base, self.bias.as_ref()) + product(reduced, &adapter.b, adapter.b.val(), None)
    }
}

/// Returns a LoRA adapter's frozen base weight, `base`, in the dtype of `factor`, one of the adapter's two matrices.
/// Dequantises a quantised weight.
fn dense(base: Tensor<2>, factor: &Tensor<2>) -> Tensor<2> {
    let base = if is_quantized(&base) { base.dequantize() } else { base };
    if base.dtype() == factor.dtype() { base } else { base.cast(factor.dtype()) }
}

/// Returns `input @ values + bias`. `values` is the value of the parameter `weight` or, with a LoRA adapter, the base
/// weight without the adapter.
fn product<const D: usize>(
    input: Tensor<D>,
    weight: &Param<Tensor<2>>,
    values: Tensor<2>,
    bias: Option<&Param<Tensor<1>>>,
) -> Tensor<D> {
    of_their_backend!(split, &input, weight, &values, bias)
        .or_else(|| of_their_backend!(untracked, &input, &values, bias))
        .unwrap_or_else(|| linear(input, values, bias.map(Param::val)))
}

/// A linear layer as a single operation in burn's autodiff graph, with a backward pass that can be split into input and
/// weight gradients.
#[derive(Debug)]
struct SplitLinear;

/// Values that a linear layer's forward pass saves for its backward pass.
#[derive(Clone, Debug)]
struct State<B: Backend> {
    /// The layer's input, reshaped to rows, which only the weight gradient needs; `None` if the weight is frozen.
    input: Option<FloatTensor<B>>,
    weight: FloatTensor<B>,
    /// Parameter ids of the layer's weight and bias; `None` for a parameter whose gradient must not be deferred until
    /// after the backward pass.
    put_off: [Option<ParamId>; 2],
    /// Shape of the layer's input before it was reshaped to rows; the input gradient gets this shape.
    shape: Shape,
}

/// Reshapes a tensor `[..., columns]` to a matrix `[rows, columns]`. One product with this matrix is faster than one
/// product for each batch entry.
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
        // The weight gradient comes first, so that the input's memory is freed before the input gradient is allocated.
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
    weight: &Tensor<2>,
    bias: Option<&Param<Tensor<1>>>,
) -> Option<Tensor<D>> {
    let (input, weight) = (B::plain(input.clone())?, B::plain(weight.clone())?);
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
    weights: &Tensor<2>,
    bias: Option<&Param<Tensor<1>>>,
) -> Option<Tensor<D>> {
    let (input, input_node) = B::tracked(input.clone())?.into_parts();
    let biases = bias.map(Param::val);
    let (values, weight_node) = B::tracked(weights.clone())?.into_parts();
    let tracked_bias = match &biases {
        Some(biases) => Some(B::tracked(biases.clone())?.into_parts()),
        None => None,
    };
    let weight_id = may_put_off(weight, weights);
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

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::module::{LoraAdapter, Quantizer, Reparameterizer};
    use burn::nn::LinearConfig;
    use burn::tensor::quantization::{Calibration, QuantValue};
    use burn::tensor::{Device, FloatDType, Tolerance};

    use super::*;
    use crate::params::seed::seeded;
    use crate::test_numbers::uniform;

    /// Asserts that a layer with an adapter has the output and the gradients of burn's layer, which merges the adapter
    /// with the weight.
    fn assert_is_merged_layer(mut layer: Linear, tolerance: f64) {
        let device = Device::flex().autodiff();
        layer.weight = layer.weight.apply_reparameterization(Drawn);
        let merged = burn::nn::Linear { weight: layer.weight.clone(), bias: layer.bias.clone() };
        let input = uniform([4, 5, 6], -1.0..1.0, &device).require_grad();
        let [one, other] = [layer.forward(input.clone()), merged.forward(input.clone())];
        let near = |one: Tensor<2>, other: Tensor<2>| {
            one.into_data().assert_approx_eq::<f32>(&other.into_data(), Tolerance::absolute(tolerance));
        };
        near(one.clone().inner().flatten(0, 1), other.clone().inner().flatten(0, 1));
        let [found, expected] = [one, other].map(|output| (output.clone() * output).sum().backward());
        let gradient = |of: &Tensor<2>, gradients| of.grad(gradients).expect("the factors are trained");
        let adapter = layer.weight.adapter().expect("the layer has an adapter");
        for factor in [adapter.a.val(), adapter.b.val()] {
            near(gradient(&factor, &found), gradient(&factor, &expected));
        }
        let of_input = |gradients| input.grad(gradients).expect("the input is tracked").flatten(0, 1);
        near(of_input(&found), of_input(&expected));
        assert!(layer.weight.base().grad(&found).is_none(), "the base is frozen");
    }

    /// A reparameterizer that adds a LoRA adapter with random matrices to a weight. The matrix `b` of burn's own
    /// adapter begins with zeros, so the gradient of `a` would be zero.
    struct Drawn;

    impl Reparameterizer for Drawn {
        type Reparam = LoraAdapter;

        fn reparameterize<const D: usize>(
            &mut self,
            _: &str,
            param: Param<Tensor<D>>,
        ) -> (Param<Tensor<D>>, Option<LoraAdapter>) {
            let device = param.lazy_device();
            let [inputs, outputs] = param.lazy_shape().dims();
            let drawn = |shape: [usize; 2]| Param::from_tensor(uniform(shape, -0.5..0.5, &device));
            (param, Some(LoraAdapter { a: drawn([inputs, 3]), b: drawn([3, outputs]), scale: 1.5 }))
        }
    }

    #[test]
    fn a_layer_with_an_adapter_is_the_layer_with_the_merged_weight() {
        let device = Device::flex().autodiff();
        let frozen = |bias| {
            let linear = || Linear::from(LinearConfig::new(6, 7).with_bias(bias).init(&device));
            seeded(&device, 3, linear).no_grad()
        };
        assert_is_merged_layer(frozen(true), 1e-5);
        let mut rounded = frozen(true);
        let value = rounded.weight.val().inner().cast(FloatDType::BF16).autodiff();
        rounded.weight = Param::initialized(rounded.weight.id, value);
        assert_is_merged_layer(rounded, 1e-5);
        let scheme = device.settings().quantization.scheme.with_value(QuantValue::Q8S);
        let quantized = frozen(false).map(&mut Quantizer::new(Calibration::MinMax, scheme));
        assert!(is_quantized(&quantized.weight.base()));
        assert_is_merged_layer(quantized, 1e-5);
    }
}
