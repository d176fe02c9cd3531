//! [`LayerNorm`]: layer normalisation with burn's parameters. The gradients of its scale and shift can be deferred, so
//! that a pipeline computes them later.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::LayerNormConfig;
use burn::tensor::module::layer_norm;
use burn::tensor::{Device, FloatDType, Tensor};

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::engine::of_their_backend;
#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::kernels::variants::{Norm, Normalisation};
use crate::layers::at_least_f32::at_least_f32;
#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::layers::normalised::normalised;

/// A layer normalisation with the parameters of burn's layer: a scale and an optional shift (Ba et al., 2016,
/// [arXiv:1607.06450](https://arxiv.org/abs/1607.06450)).
///
/// In f32 on this host's CPU, the layer is one operation in the autodiff graph, where burn 0.22 records a dozen. Its
/// backward pass can be split into input and weight gradients.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct LayerNorm {
    /// The layer normalisation's trainable scale, with shape `[width]`. Normalised values are multiplied by it.
    pub gamma: Param<Tensor<1>>,
    /// The layer normalisation's trainable shift, with shape `[width]`, which is added to the scaled values; `None` for
    /// a layer without shift.
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

    /// Normalises an input `[..., width]` over its last dimension, and returns a tensor of the same shape and dtype.
    ///
    /// # Panics
    /// Panics if the last dimension of the input is not the width of the layer, or if `beta` has another width.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (width, [expected]) = (input.dims()[D - 1], self.gamma.shape().dims());
        assert_eq!(width, expected, "the input has {width} features, and the layer takes {expected}");
        let shifts = self.beta.as_ref().map_or(expected, |beta| beta.shape()[0]);
        assert_eq!(shifts, expected, "the layer has {shifts} shifts (beta) and {expected} scales (gamma)");
        #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
        {
            let norm = Normalisation { kind: Norm::Layer, epsilon: self.epsilon as f32 };
            let beta = self.beta.as_ref();
            if let Some(output) = of_their_backend!(normalised, &input, &self.gamma, beta, norm) {
                return output;
            }
        }
        let beta = self.beta.as_ref().map(Param::val);
        // A sum of squares needs f32, because f16 has too small a range and bf16 too little precision.
        let given = FloatDType::from(input.dtype());
        let wide = at_least_f32(given);
        let (gamma, beta) = (self.gamma.val().cast(wide), beta.map(|beta| beta.cast(wide)));
        layer_norm(input.cast(wide), gamma, beta, self.epsilon).cast(given)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;

    use crate::layers::close_to_f64::{apart, numbers};
    use crate::test_numbers::uniform;

    const WIDTH: usize = 37;
    const ROWS: usize = 150;

    #[test]
    fn values_and_gradients_match_those_in_f64() {
        let device = Device::flex();
        for bias in [false, true] {
            let mut norm = LayerNorm::init(&LayerNormConfig::new(WIDTH).with_bias(bias), &device.clone().autodiff());
            let random = |shape: [usize; 2], mean: f64| uniform(shape, mean - 3.0..mean + 3.0, &device);
            let gamma = random([1, WIDTH], 1.0).flatten::<1>(0, 1);
            norm.gamma = Param::from_tensor(gamma.clone().autodiff().require_grad());
            let shift =
                if bias { random([1, WIDTH], 0.0) } else { Tensor::zeros([1, WIDTH], &device) }.flatten::<1>(0, 1);
            norm.beta = norm.beta.map(|_| Param::from_tensor(shift.clone().autodiff().require_grad()));
            let (input, upstream) = (random([ROWS, WIDTH], 0.7), random([ROWS, WIDTH], 0.0));
            let leaf = input.clone().autodiff().require_grad();
            let output = norm.forward(leaf.clone());
            let gradients = (output.clone() * upstream.clone().autodiff()).sum().backward();
            let valid = norm.valid().forward(input.clone());
            assert_eq!(numbers(output.clone().inner()), numbers(valid), "a graph must not change the result");

            let (x, up, gamma, shift) = (numbers(input), numbers(upstream), numbers(gamma), numbers(shift));
            let mut exact = (Vec::new(), Vec::new(), vec![0.0; WIDTH], vec![0.0; WIDTH]);
            for (x, up) in x.chunks(WIDTH).zip(up.chunks(WIDTH)) {
                let mean = x.iter().sum::<f64>() / WIDTH as f64;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / WIDTH as f64;
                let over = 1.0 / (variance + 1e-5).sqrt();
                let hat: Vec<_> = x.iter().map(|x| (x - mean) * over).collect();
                let scaled: Vec<_> = up.iter().zip(&gamma).map(|(up, gamma)| up * gamma).collect();
                let plain = scaled.iter().sum::<f64>() / WIDTH as f64;
                let along = scaled.iter().zip(&hat).map(|(scaled, hat)| scaled * hat).sum::<f64>() / WIDTH as f64;
                exact.0.extend(hat.iter().zip(&gamma).zip(&shift).map(|((hat, gamma), shift)| hat * gamma + shift));
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

    #[test]
    fn inputs_and_parameters_may_have_other_types() {
        let device = Device::flex();
        let random = || uniform([3, WIDTH], -1.0..1.0, &device);
        let norm = |dtype: FloatDType| {
            let mut norm = LayerNorm::init(&LayerNormConfig::new(WIDTH), &device);
            norm.gamma = Param::from_tensor(norm.gamma.val().cast(dtype));
            norm.beta = norm.beta.map(|beta| Param::from_tensor(beta.val().cast(dtype)));
            norm
        };
        let input = random();
        let exact = numbers(norm(FloatDType::F64).forward(input.clone().cast(FloatDType::F64)));
        for (of_input, of_parameters) in [
            (FloatDType::F64, FloatDType::F32),
            (FloatDType::F32, FloatDType::F64),
            (FloatDType::F32, FloatDType::BF16),
        ] {
            let output = norm(of_parameters).forward(input.clone().cast(of_input));
            assert_eq!(FloatDType::from(output.dtype()), of_input);
            let apart = numbers(output).iter().zip(&exact).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
            assert!(apart < 1e-5, "{of_input:?} and {of_parameters:?}: {apart}");
        }
    }
}
