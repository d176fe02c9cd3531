//! [`RmsNorm`]: RMS normalisation with burn's parameter. The gradient of its scale can be deferred, so that a pipeline
//! computes it later.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::RmsNormConfig;
use burn::tensor::{Device, FloatDType, Tensor};

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::engine::of_their_backend;
#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::kernels::variants::{Norm, Normalisation};
use crate::layers::at_least_f32::at_least_f32;
#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::layers::normalised::normalised;

/// RMS normalisation with the parameter of burn's layer: the input divided by sqrt(mean square + epsilon), times a
/// trainable scale (Zhang and Sennrich, 2019, [arXiv:1910.07467](https://arxiv.org/abs/1910.07467)).
///
/// In f32 on this host's CPU, the layer is one operation in the autodiff graph. Its backward pass can be split into
/// input and weight gradients.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct RmsNorm {
    /// The RMS normalisation's trainable scale, with shape `[width]`. Normalised values are multiplied by it.
    pub gamma: Param<Tensor<1>>,
    epsilon: f64,
}

impl ModuleDisplay for RmsNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [width] = self.gamma.shape().dims();
        content.add("width", &width).add("epsilon", &self.epsilon).optional()
    }
}

impl RmsNorm {
    /// Returns an RMS normalisation with the parameter that burn initialises from `config`.
    pub fn init(config: &RmsNormConfig, device: &Device) -> Self {
        Self { gamma: config.init(device).gamma, epsilon: config.epsilon }
    }

    /// Normalises an input `[..., width]` over its last dimension, and returns a tensor of the same shape and dtype.
    ///
    /// # Panics
    /// Panics if the last dimension of the input is not the width of the layer.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (width, [expected]) = (input.dims()[D - 1], self.gamma.shape().dims());
        assert_eq!(width, expected, "the input has {width} features, and the layer takes {expected}");
        #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
        {
            let norm = Normalisation { kind: Norm::RootMeanSquare, epsilon: self.epsilon as f32 };
            if let Some(output) = of_their_backend!(normalised, &input, &self.gamma, None, norm) {
                return output;
            }
        }
        // A sum of squares needs f32, because f16 has too small a range and bf16 too little precision.
        let given = FloatDType::from(input.dtype());
        let wide = at_least_f32(given);
        let input = input.cast(wide);
        let root = (input.clone().square().mean_dim(D - 1) + self.epsilon).sqrt();
        (input / root * self.gamma.val().cast(wide).unsqueeze()).cast(given)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;
    use burn::optim::GradientsParams;

    use crate::autograd::sum::Sum;
    use crate::autograd::weight_gradients::collect;
    use crate::layers::close_to_f64::{apart, numbers};
    use crate::test_numbers::uniform;

    const WIDTH: usize = 37;
    const ROWS: usize = 150;

    /// Tests RMS normalisation and its gradients against the definition in f64, with an unsplit backward pass and with
    /// one that is split into input and weight gradients.
    #[test]
    fn values_and_gradients_match_those_in_f64() {
        let device = Device::flex();
        let mut norm = RmsNorm::init(&RmsNormConfig::new(WIDTH).with_epsilon(1e-5), &device.clone().autodiff());
        let random = |shape: [usize; 2]| uniform(shape, -2.0..4.0, &device);
        let gamma = random([1, WIDTH]).flatten::<1>(0, 1);
        norm.gamma = Param::from_tensor(gamma.clone().autodiff().require_grad());
        let (input, upstream) = (random([ROWS, WIDTH]), random([ROWS, WIDTH]));
        let leaf = input.clone().autodiff().require_grad();
        let output = norm.forward(leaf.clone());
        let root = (output.clone() * upstream.clone().autodiff()).sum();
        let gradients = root.clone().backward();
        assert_eq!(numbers(output.clone().inner()), numbers(norm.valid().forward(input.clone())));

        let (x, up, gamma) = (numbers(input.clone()), numbers(upstream.clone()), numbers(gamma));
        let mut exact = (Vec::new(), Vec::new(), vec![0.0; WIDTH]);
        for (x, up) in x.chunks(WIDTH).zip(up.chunks(WIDTH)) {
            let over = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / WIDTH as f64 + 1e-5).sqrt();
            let along = x.iter().zip(up).zip(&gamma).map(|((x, up), gamma)| x * up * gamma).sum::<f64>() / WIDTH as f64;
            exact.0.extend(x.iter().zip(&gamma).map(|(x, gamma)| x * over * gamma));
            exact.1.extend(x.iter().zip(up).zip(&gamma).map(|((x, up), g)| over * (up * g - x * over * over * along)));
            exact.2.iter_mut().zip(x.iter().zip(up)).for_each(|(sum, (x, up))| *sum += up * x * over);
        }
        assert!(apart(&numbers(output.inner()), &exact.0) < 1e-5);
        assert!(apart(&numbers(leaf.grad(&gradients).unwrap()), &exact.1) < 2e-5);
        let whole = numbers(norm.gamma.val().grad(&gradients).unwrap());
        assert!(apart(&whole, &exact.2) < 5e-5);

        let root = (norm.forward(input.autodiff().require_grad()) * upstream.autodiff()).sum();
        let (gradients, deferred) = collect(std::iter::empty().collect(), || root.backward());
        assert!(norm.gamma.val().grad(&gradients).is_none() && deferred.len() == 1, "the gradient must be deferred");
        let mut sum = Sum::new(GradientsParams::new(), None);
        deferred.into_iter().for_each(|deferred| deferred.add_to(&mut sum));
        assert_eq!(numbers(sum.gradients.remove::<1>(norm.gamma.id).unwrap()), whole);
    }
}
