//! [`LayerNorm`]: layer normalisation with burn's parameters, whose backward can leave the gradients of scale and shift
//! for later.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::LayerNormConfig;
use burn::tensor::module::layer_norm;
use burn::tensor::{DType, Device, FloatDType, Tensor};

#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
use crate::autograd::engine::of_their_backend;

/// Layer normalisation with burn's parameters (Ba et al., 2016, [arXiv:1607.06450](https://arxiv.org/abs/1607.06450)).
///
/// In f32 on the host, the layer is one operation in the autodiff graph, whose backward can be split; burn 0.22 records
/// a dozen operations.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct LayerNorm {
    /// The trained scale of the normalised values, with shape `[width]`.
    pub gamma: Param<Tensor<1>>,
    /// The trained shift of the scaled values, with shape `[width]`; `None` for a layer without shift.
    pub beta: Option<Param<Tensor<1>>>,
    epsilon: f64,
}

impl ModuleDisplay for LayerNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [width] = self.gamma.shape().dims();
        content.add("width", &width).add("epsilon", &self.epsilon).optional()
    }
}

impl LayerNorm {
    /// Returns a layer normalisation with the parameters that burn initialises from `config`.
    pub fn init(config: &LayerNormConfig, device: &Device) -> Self {
        let norm = config.init(device);
        Self { gamma: norm.gamma, beta: norm.beta, epsilon: config.epsilon }
    }

    /// Normalises an input `[..., width]` over its last dimension, and returns a tensor of the same shape and type.
    ///
    /// # Panics
    /// Panics if the last dimension of the input is not the width of the layer.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (width, [expected]) = (input.dims()[D - 1], self.gamma.shape().dims());
        assert_eq!(width, expected, "the input has {width} features, and the layer takes {expected}");
        #[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
        {
            let (beta, epsilon) = (self.beta.as_ref(), self.epsilon as f32);
            if let Some(output) = of_their_backend!(one::layer_norm, &input, &self.gamma, beta, epsilon) {
                return output;
            }
        }
        let beta = self.beta.as_ref().map(Param::val);
        // A sum of squares needs f32, because f16 has too small a range and bf16 too few bits.
        if matches!(input.dtype(), DType::F16 | DType::BF16) {
            let (given, wide) = (FloatDType::from(input.dtype()), FloatDType::F32);
            let (gamma, beta) = (self.gamma.val().cast(wide), beta.map(|beta| beta.cast(wide)));
            return layer_norm(input.cast(wide), gamma, beta, self.epsilon).cast(given);
        }
        layer_norm(input, self.gamma.val(), beta, self.epsilon)
    }
}

#[cfg(any(feature = "flex", feature = "cuda", feature = "remote"))]
mod one {
    use std::marker::PhantomData;

    use burn::backend::TensorMetadata;
    use burn::backend::autodiff::checkpoint::base::Checkpointer;
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops};
    use burn::backend::tensor::FloatTensor;
    use burn::module::{Param, ParamId};
    use burn::tensor::Tensor;

    use crate::autograd::engine::recorded;
    use crate::autograd::split_backward::{Sum, may_put_off, put_off_any};
    use crate::kernels::Kernels;

    /// The layer normalisation as one operation of burn's autodiff graph.
    #[derive(Debug)]
    struct Normalised;

    /// The values of the forward of layer normalisation that its backward needs.
    #[derive(Clone, Debug)]
    struct State<B: Kernels> {
        input: FloatTensor<B>,
        gamma: FloatTensor<B>,
        moments: B::Moments,
        /// The parameter ids of the scale and the shift; `None` for a parameter whose gradient must not be deferred.
        put_off: [Option<ParamId>; 2],
    }

    impl<B: Kernels, const N: usize> Backward<B, N> for Normalised {
        type State = State<B>;

        fn backward(self, ops: Ops<State<B>, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<B>(&ops.node);
            let State { input, gamma, moments, put_off: ids } = ops.state;
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
            // The gradient of the input comes last, because burn's fusion makes fewer kernels if the sums over columns
            // follow the sums over rows.
            if let Some(node) = of_input {
                gradients.register::<B>(node.id, B::normalised_to_input(&input, &gamma, &moments, &gradient));
            }
        }
    }

    /// Computes layer normalisation by the backend's kernel; returns `None` if there is no kernel for the type of the
    /// tensors or their device.
    pub fn layer_norm<B: Kernels, const D: usize>(
        _: PhantomData<B>,
        input: &Tensor<D>,
        gamma: &Param<Tensor<1>>,
        beta: Option<&Param<Tensor<1>>>,
        epsilon: f32,
    ) -> Option<Tensor<D>> {
        let (scale, shift) = (gamma, beta);
        let (gamma, beta) = (scale.val(), shift.map(Param::val));
        let beta_id = shift.zip(beta.as_ref()).and_then(|(shift, beta)| may_put_off(shift, beta));
        let put_off = [may_put_off(scale, &gamma), beta_id];
        let mut of_parameters = [gamma.dtype()].into_iter().chain(beta.as_ref().map(Tensor::dtype));
        if !B::takes(input) || of_parameters.any(|dtype| dtype != input.dtype()) {
            return None;
        }
        if !input.device().is_autodiff() {
            let input = B::plain(input.clone()).filter(|input| B::are_there(&input.device()))?;
            let (gamma, beta) = (B::plain(gamma)?, beta.map(B::plain));
            let beta = match &beta {
                Some(beta) => Some(beta.as_ref()?),
                None => None,
            };
            let (output, _) = B::normalised(&input, &gamma, beta, epsilon);
            return Some(B::of_plain(output));
        }
        let (input, input_node) = B::tracked(input.clone())?.into_parts();
        let (gamma, gamma_node) = B::tracked(gamma)?.into_parts();
        if !B::are_there(&input.device()) {
            return None;
        }
        Some(match beta {
            None => {
                let (output, moments) = B::normalised(&input, &gamma, None, epsilon);
                let state = State::<B> { input, gamma, moments, put_off };
                recorded::<B, _, 2, D>(Normalised, [input_node, gamma_node], state, output)
            }
            Some(beta) => {
                let (beta, beta_node) = B::tracked(beta)?.into_parts();
                let (output, moments) = B::normalised(&input, &gamma, Some(&beta), epsilon);
                let state = State::<B> { input, gamma, moments, put_off };
                recorded::<B, _, 3, D>(Normalised, [input_node, gamma_node, beta_node], state, output)
            }
        })
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;
    use burn::tensor::Distribution;

    const WIDTH: usize = 37;
    const ROWS: usize = 150;

    fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
        tensor.into_data().iter::<f32>().map(f64::from).collect()
    }

    fn apart(found: &[f64], exact: &[f64]) -> f64 {
        assert_eq!(found.len(), exact.len());
        found.iter().zip(exact).map(|(found, exact)| (found - exact).abs() / exact.abs().max(1.0)).fold(0.0, f64::max)
    }

    #[test]
    fn values_and_gradients_match_those_in_f64() {
        let device = Device::flex();
        for bias in [false, true] {
            let mut norm = LayerNorm::init(&LayerNormConfig::new(WIDTH).with_bias(bias), &device.clone().autodiff());
            let random = |shape: [usize; 2], mean: f64| {
                Tensor::<2>::random(shape, Distribution::Uniform(mean - 3.0, mean + 3.0), &device)
            };
            let gamma = random([1, WIDTH], 1.0).flatten::<1>(0, 1);
            norm.gamma = Param::from_tensor(gamma.clone().autodiff().require_grad());
            let (input, upstream) = (random([ROWS, WIDTH], 0.7), random([ROWS, WIDTH], 0.0));
            let leaf = input.clone().autodiff().require_grad();
            let output = norm.forward(leaf.clone());
            let gradients = (output.clone() * upstream.clone().autodiff()).sum().backward();
            let valid = norm.valid().forward(input.clone());
            assert_eq!(numbers(output.clone().inner()), numbers(valid), "a graph must not change the result");

            let (x, up, gamma) = (numbers(input), numbers(upstream), numbers(gamma));
            let mut exact = (Vec::new(), Vec::new(), vec![0.0; WIDTH], vec![0.0; WIDTH]);
            for (x, up) in x.chunks(WIDTH).zip(up.chunks(WIDTH)) {
                let mean = x.iter().sum::<f64>() / WIDTH as f64;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / WIDTH as f64;
                let over = 1.0 / (variance + 1e-5).sqrt();
                let hat: Vec<_> = x.iter().map(|x| (x - mean) * over).collect();
                let scaled: Vec<_> = up.iter().zip(&gamma).map(|(up, gamma)| up * gamma).collect();
                let plain = scaled.iter().sum::<f64>() / WIDTH as f64;
                let along = scaled.iter().zip(&hat).map(|(scaled, hat)| scaled * hat).sum::<f64>() / WIDTH as f64;
                exact.0.extend(hat.iter().zip(&gamma).map(|(hat, gamma)| hat * gamma));
                exact.1.extend(scaled.iter().zip(&hat).map(|(scaled, hat)| over * (scaled - plain - hat * along)));
                exact.2.iter_mut().zip(up.iter().zip(&hat)).for_each(|(sum, (up, hat))| *sum += up * hat);
                exact.3.iter_mut().zip(up).for_each(|(sum, up)| *sum += up);
            }
            assert!(apart(&numbers(output.inner()), &exact.0) < 1e-5);
            assert!(apart(&numbers(leaf.grad(&gradients).unwrap()), &exact.1) < 2e-5);
            assert!(apart(&numbers(norm.gamma.val().grad(&gradients).unwrap()), &exact.2) < 5e-5);
            if let Some(beta) = &norm.beta {
                assert!(apart(&numbers(beta.val().grad(&gradients).unwrap()), &exact.3) < 5e-5);
            }
            assert_eq!(bias, norm.beta.is_some());
        }
    }
}
