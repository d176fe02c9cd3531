//! [`AdamWStep`]: one step of the optimizer AdamW. On the CPU it passes over the memory once.

use burn::tensor::Tensor;

/// The numbers of one step of the optimizer AdamW (Loshchilov and Hutter, 2019,
/// [arXiv:1711.05101](https://arxiv.org/abs/1711.05101)).
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    /// The factors by which a step multiplies the first and the second moment, beta 1 and beta 2.
    pub betas: [f64; 2],
    /// The number that is added to the square root of the second moment before the first moment is divided by it.
    pub epsilon: f64,
    /// The learning rate of the step.
    pub learning_rate: f64,
    /// The weight decay. The step multiplies a parameter by `1 - learning_rate * weight_decay`.
    pub weight_decay: f64,
    /// The number of the parameter's steps so far, this one included. The bias corrections depend on it.
    pub time: usize,
}

/// A parameter and its two moments after a step of AdamW. All three have one shape.
#[derive(Debug)]
pub struct Updated<const D: usize> {
    /// The updated parameter.
    pub parameter: Tensor<D>,
    /// The updated first moment: the running mean of the gradients.
    pub first: Tensor<D>,
    /// The updated second moment: the running mean of the squared gradients.
    pub second: Tensor<D>,
}

impl AdamWStep {
    /// Updates a parameter, with PyTorch's order of operations. `gradient` has the shape of the parameter, and so have
    /// the moments of the previous step, the first and the second; `None` in the first step. All tensors must be outside
    /// autodiff.
    pub fn update<const D: usize>(
        &self,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        moments: Option<[Tensor<D>; 2]>,
    ) -> Updated<D> {
        #[cfg(feature = "flex")]
        if on_the_cpu(&parameter, &gradient, moments.as_ref()) {
            return self.update_on_the_cpu(parameter, gradient, moments);
        }
        self.composed(parameter, gradient, moments)
    }

    /// Updates a parameter by burn's operations, which burn fuses on GPUs.
    fn composed<const D: usize>(
        &self,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        moments: Option<[Tensor<D>; 2]>,
    ) -> Updated<D> {
        let [beta_1, beta_2] = self.betas;
        let [mut first, mut second] = [gradient.clone() * (1.0 - beta_1), gradient.square() * (1.0 - beta_2)];
        if let Some([before_1, before_2]) = moments {
            first = before_1 * beta_1 + first;
            second = before_2 * beta_2 + second;
        }
        let deviation = second.clone().sqrt() / self.correction_of_deviation() + self.epsilon;
        let kept = self.kept();
        let decayed = if kept == 1.0 { parameter } else { parameter * kept };
        Updated { parameter: decayed - first.clone() / deviation * self.rate(), first, second }
    }

    /// Returns the factor by which the weight decay multiplies a parameter.
    fn kept(&self) -> f64 {
        1.0 - self.learning_rate * self.weight_decay
    }

    /// Returns the learning rate divided by the bias correction of the first moment.
    fn rate(&self) -> f64 {
        self.learning_rate / (1.0 - self.betas[0].powi(self.time as i32))
    }

    /// Returns the square root of the second moment's bias correction.
    fn correction_of_deviation(&self) -> f64 {
        (1.0 - self.betas[1].powi(self.time as i32)).sqrt()
    }
}

#[cfg(feature = "flex")]
mod cpu {
    use burn::backend::Flex;
    use burn::tensor::{DType, Tensor};

    use super::{AdamWStep, Updated};
    use crate::engine::Engine;
    use crate::kernels::cpu::adamw::{Factors, update};

    /// Whether all tensors of a step are f32 tensors on the CPU, outside autodiff, of one shape.
    pub(super) fn on_the_cpu<const D: usize>(
        parameter: &Tensor<D>,
        gradient: &Tensor<D>,
        moments: Option<&[Tensor<D>; 2]>,
    ) -> bool {
        let is_plain = |tensor: &Tensor<D>| {
            tensor.dtype() == DType::F32 && tensor.dims() == parameter.dims() && Flex::plain(tensor.clone()).is_some()
        };
        [parameter, gradient].into_iter().chain(moments.into_iter().flatten()).all(is_plain)
    }

    impl AdamWStep {
        /// Updates a parameter in one pass over the memory. Overwrites the parameter and its moments where nothing else
        /// uses their memory.
        pub(super) fn update_on_the_cpu<const D: usize>(
            &self,
            parameter: Tensor<D>,
            gradient: Tensor<D>,
            moments: Option<[Tensor<D>; 2]>,
        ) -> Updated<D> {
            let [first, second] = moments.unwrap_or_else(|| [gradient.zeros_like(), gradient.zeros_like()]);
            let plain = |tensor| Flex::plain(tensor).expect("the tensor is one of the CPU");
            let [beta_1, beta_2] = self.betas;
            let factors = Factors {
                first: [beta_1 as f32, (1.0 - beta_1) as f32],
                second: [beta_2 as f32, (1.0 - beta_2) as f32],
                deviation: self.correction_of_deviation() as f32,
                epsilon: self.epsilon as f32,
                kept: self.kept() as f32,
                rate: self.rate() as f32,
            };
            let [parameter, first, second] =
                update([parameter, first, second].map(plain), &plain(gradient), factors).map(Flex::of_plain);
            Updated { parameter, first, second }
        }
    }
}

#[cfg(feature = "flex")]
use cpu::on_the_cpu;

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::{Device, Distribution};

    use super::*;

    const STEP: AdamWStep =
        AdamWStep { betas: [0.9, 0.999], epsilon: 1e-8, learning_rate: 1e-2, weight_decay: 0.1, time: 1 };

    fn random(shape: [usize; 2]) -> Tensor<2> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
    }

    fn bits(updated: Updated<2>) -> Vec<u32> {
        let tensors = [updated.parameter, updated.first, updated.second];
        tensors
            .into_iter()
            .flat_map(|tensor| tensor.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>())
            .collect()
    }

    /// Tests three steps of a parameter that several cores update, and of one whose tensors are views of others.
    #[test]
    fn a_step_on_the_cpu_has_the_bits_of_burns_operations() {
        let view = |tensor: Tensor<2>| tensor.transpose().slice([1..8, 2..9]);
        for (shape, view) in [([300, 200], (|tensor| tensor) as fn(Tensor<2>) -> Tensor<2>), ([9, 9], view)] {
            let mut moments = None;
            for time in 1..=3 {
                let (parameter, gradient) = (view(random(shape)), view(random(shape)));
                let step = AdamWStep { time, weight_decay: [0.0, 0.1][time % 2], ..STEP };
                let composed = step.composed(parameter.clone(), gradient.clone(), moments.clone());
                let updated = step.update(parameter, gradient, moments);
                moments = Some([composed.first.clone(), composed.second.clone()]);
                assert!(bits(updated) == bits(composed), "{shape:?}, step {time}");
            }
        }
    }

    #[test]
    fn a_step_leaves_tensors_unchanged_that_are_used_elsewhere() {
        let (parameter, gradient, moments) = (random([4, 5]), random([4, 5]), [random([4, 5]), random([4, 5]).abs()]);
        let before = [&parameter, &gradient, &moments[0], &moments[1]].map(|tensor| tensor.clone().into_data());
        let updated = STEP.update(parameter.clone(), gradient.clone(), Some(moments.clone()));
        assert_ne!(updated.parameter.into_data(), before[0]);
        let [first, second] = moments;
        assert_eq!([parameter, gradient, first, second].map(Tensor::into_data), before);
    }
}
