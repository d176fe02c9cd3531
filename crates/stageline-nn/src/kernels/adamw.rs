//! [`AdamWStep`]: one AdamW step on one parameter. On the CPU a fused kernel computes it in one pass over memory.

use burn::tensor::{DType, FloatDType, Tensor};

/// The hyperparameters of one AdamW step, which [`update`](Self::update) applies to a parameter (Loshchilov and Hutter,
/// 2019, [arXiv:1711.05101](https://arxiv.org/abs/1711.05101)).
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    /// `[beta1, beta2]`, the decay rates of the two moments: `first = beta1 * first + (1 - beta1) * gradient` and
    /// `second = beta2 * second + (1 - beta2) * gradient^2`.
    pub betas: [f64; 2],
    /// Epsilon: the small value that AdamW adds to the square root of the bias-corrected second moment, to avoid a
    /// division by zero.
    pub epsilon: f64,
    /// The learning rate of this step of AdamW.
    pub learning_rate: f64,
    /// The weight decay of AdamW, which is decoupled: a step multiplies the parameter by `1 - learning_rate *
    /// weight_decay`.
    pub weight_decay: f64,
    /// Number of AdamW steps on this parameter, including this one (1 in the first step), which the bias corrections
    /// depend on.
    pub time: usize,
}

/// The result of [`AdamWStep::update`]: a parameter and its two moments after an AdamW step. All three have the same
/// shape.
#[derive(Debug)]
pub struct AdamWUpdate<const D: usize> {
    /// The updated parameter.
    pub parameter: Tensor<D>,
    /// The updated first moment: the exponential moving average of the gradients, without bias correction.
    pub first: Tensor<D>,
    /// The updated second moment: the exponential moving average of the squared gradients, without bias correction.
    pub second: Tensor<D>,
}

impl AdamWStep {
    /// Updates a parameter by one AdamW step, in PyTorch's order of operations. Returns the new parameter and its new
    /// moments.
    ///
    /// `gradient` is the gradient of the parameter. `moments` are the first and second moments that the previous step
    /// returned, and `None` in the first step. All these tensors have the parameter's shape, and must not be tracked by
    /// autodiff. For an f16 or bf16 parameter, the step is computed in f32: the new parameter keeps the parameter's
    /// dtype, and its moments are in f32.
    pub fn update<const D: usize>(
        &self,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        moments: Option<[Tensor<D>; 2]>,
    ) -> AdamWUpdate<D> {
        #[cfg(feature = "flex")]
        if self::on_cpu::computes(&parameter, &gradient, moments.as_ref()) {
            return self.update_on_cpu(parameter, gradient, moments);
        }
        let dtype = parameter.dtype();
        if !matches!(dtype, DType::F16 | DType::BF16) {
            return self.composed(parameter, gradient, moments);
        }
        // In f16 the squares of gradients below 1e-4 underflow to 0, and so does the usual epsilon (1e-8). In bf16 the
        // usual beta 2 of 0.999 rounds to 1, so the second moment would not decay.
        let wide = |tensor: Tensor<D>| tensor.cast(FloatDType::F32);
        let update = self.composed(wide(parameter), wide(gradient), moments.map(|moments| moments.map(wide)));
        AdamWUpdate { parameter: update.parameter.cast(FloatDType::from(dtype)), ..update }
    }

    /// Updates a parameter with burn's own operations, which burn fuses on GPUs.
    fn composed<const D: usize>(
        &self,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        moments: Option<[Tensor<D>; 2]>,
    ) -> AdamWUpdate<D> {
        let [beta_1, beta_2] = self.betas;
        let [mut first, mut second] = [gradient.clone() * (1.0 - beta_1), gradient.square() * (1.0 - beta_2)];
        if let Some([before_1, before_2]) = moments {
            first = before_1 * beta_1 + first;
            second = before_2 * beta_2 + second;
        }
        let deviation = second.clone().sqrt() / self.correction_of_deviation() + self.epsilon;
        let kept = self.kept();
        let decayed = if kept == 1.0 { parameter } else { parameter * kept };
        AdamWUpdate { parameter: decayed - first.clone() / deviation * self.rate(), first, second }
    }

    /// Returns `1 - learning_rate * weight_decay`, the coefficient by which a step decays the parameter.
    fn kept(&self) -> f64 {
        1.0 - self.learning_rate * self.weight_decay
    }

    /// Returns `learning_rate / (1 - beta1^time)`: the learning rate divided by the first moment's bias correction.
    fn rate(&self) -> f64 {
        self.learning_rate / (1.0 - self.betas[0].powi(self.time as i32))
    }

    /// Returns `sqrt(1 - beta2^time)`: the square root of the second moment's bias correction.
    fn correction_of_deviation(&self) -> f64 {
        (1.0 - self.betas[1].powi(self.time as i32)).sqrt()
    }
}

#[cfg(feature = "flex")]
mod on_cpu {
    use burn::backend::Flex;
    use burn::tensor::{DType, Tensor};

    use super::{AdamWStep, AdamWUpdate};
    use crate::engine::Engine;
    use crate::kernels::cpu::adamw::{Factors, update};

    /// Whether the fused CPU kernel can compute this step: all tensors are f32 tensors of the same shape on the CPU,
    /// and autodiff does not track them.
    pub(super) fn computes<const D: usize>(
        parameter: &Tensor<D>,
        gradient: &Tensor<D>,
        moments: Option<&[Tensor<D>; 2]>,
    ) -> bool {
        let fits = |tensor: &Tensor<D>| {
            tensor.dtype() == DType::F32 && tensor.dims() == parameter.dims() && Flex::plain(tensor.clone()).is_some()
        };
        [parameter, gradient].into_iter().chain(moments.into_iter().flatten()).all(fits)
    }

    impl AdamWStep {
        /// Updates a parameter with the fused CPU kernel, in one pass over memory. The result overwrites the parameter
        /// and its moments where nothing else uses their memory.
        pub(super) fn update_on_cpu<const D: usize>(
            &self,
            parameter: Tensor<D>,
            gradient: Tensor<D>,
            moments: Option<[Tensor<D>; 2]>,
        ) -> AdamWUpdate<D> {
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
            let moments = moments.map(|moments| moments.map(plain));
            let updated = update(plain(parameter), &plain(gradient), moments, factors);
            let [parameter, first, second] = updated.map(Flex::of_plain);
            AdamWUpdate { parameter, first, second }
        }
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{Device, TensorData};

    use super::*;
    use crate::engine::Engine;
    use crate::test_numbers::uniform;

    const STEP: AdamWStep =
        AdamWStep { betas: [0.9, 0.999], epsilon: 1e-8, learning_rate: 1e-2, weight_decay: 0.1, time: 1 };

    /// A function that returns a view of a tensor, such as its transpose, or the tensor itself.
    type View = fn(Tensor<2>) -> Tensor<2>;

    fn random(shape: [usize; 2]) -> Tensor<2> {
        uniform(shape, -2.0..2.0, &Device::flex())
    }

    fn bits(update: AdamWUpdate<2>) -> Vec<u32> {
        let of_tensor = |tensor: Tensor<2>| tensor.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
        [update.parameter, update.first, update.second].into_iter().flat_map(of_tensor).collect()
    }

    /// Tests that three AdamW steps of the CPU kernel have the bits of burn's operations. The tensors are large enough
    /// for several cores, empty, or views of other tensors: a part of a transpose, rows in the middle, or the first
    /// rows.
    #[test]
    fn a_step_on_the_cpu_has_the_bits_of_burns_operations() {
        let views: [(_, View); 5] = [
            ([300, 200], |tensor| tensor),
            ([0, 3], |tensor| tensor),
            ([9, 9], |tensor| tensor.transpose().slice([1..8, 2..9])),
            ([9, 9], |tensor| tensor.slice([2..5, 0..9])),
            ([9, 9], |tensor| tensor.slice([0..4, 0..9])),
        ];
        for (case, (shape, view)) in views.into_iter().enumerate() {
            let mut moments = None;
            for time in 1..=3 {
                let (parameter, gradient) = (view(random(shape)), view(random(shape)));
                let step = AdamWStep { time, weight_decay: [0.0, 0.1][time % 2], ..STEP };
                let composed = step.composed(parameter.clone(), gradient.clone(), moments.clone());
                let update = step.update_on_cpu(parameter, gradient, moments);
                moments = Some([view(random(shape)), view(random(shape)).abs()]);
                assert!(bits(update) == bits(composed), "case {case}, step {time}");
            }
        }
    }

    #[test]
    fn a_first_step_keeps_the_signs_of_zeros() {
        let of = |numbers: [f32; 4]| Tensor::<2>::from_data(TensorData::new(numbers.to_vec(), [2, 2]), &Device::flex());
        let (parameter, gradient) = (of([0.0, -0.0, -0.0, 1.0]), of([0.0, -0.0, 0.0, -1e-45]));
        let composed = STEP.composed(parameter.clone(), gradient.clone(), None);
        assert_eq!(bits(STEP.update_on_cpu(parameter, gradient, None)), bits(composed));
    }

    #[test]
    fn only_tensors_that_nothing_else_uses_are_overwritten() {
        let (parameter, gradient, moments) = (random([4, 5]), random([4, 5]), [random([4, 5]), random([4, 5]).abs()]);
        let before = [&parameter, &gradient, &moments[0], &moments[1]].map(|tensor| tensor.clone().into_data());
        let update = STEP.update(parameter.clone(), gradient.clone(), Some(moments.clone()));
        let [first, second] = moments;
        assert_eq!([parameter, gradient.clone(), first, second].map(Tensor::into_data), before);

        let address = |tensor: &Tensor<2>| Flex::plain(tensor.clone()).unwrap().bytes().as_ptr();
        let AdamWUpdate { parameter, first, second } = update;
        let addresses = [&parameter, &first, &second].map(address);
        let again = STEP.update(parameter, gradient, Some([first, second]));
        assert_eq!([&again.parameter, &again.first, &again.second].map(address), addresses);
    }

    /// Tests AdamW steps of an f16 parameter with gradients that are too small for f16. Their contributions to the
    /// second moment (1e-9) would be 0 in f16, and so would epsilon (1e-8). After 30 steps the gradients are 0.
    #[test]
    fn steps_in_f16_have_the_values_of_steps_in_f32() {
        let trained = |dtype: FloatDType| {
            let mut parameter = Tensor::<2>::ones([1, 3], &Device::flex()).cast(dtype);
            let mut moments = None;
            for time in 1..=40 {
                let size = if time <= 30 { 1e-3 } else { 0.0 };
                let gradient = Tensor::from_floats([[size, 0.0, -size]], &Device::flex()).cast(dtype);
                let update = AdamWStep { time, ..STEP }.update(parameter, gradient, moments);
                parameter = update.parameter;
                moments = Some([update.first, update.second]);
            }
            parameter.into_data().iter::<f32>().collect::<Vec<_>>()
        };
        for (found, exact) in trained(FloatDType::F16).into_iter().zip(trained(FloatDType::F32)) {
            assert!((found - exact).abs() < 0.02, "{found} instead of {exact}");
        }
    }

    /// Tests that the second moment of a bf16 parameter decays, although the usual beta 2 (0.999) rounds to 1 in bf16.
    #[test]
    fn moments_of_parameters_in_bf16_decay() {
        let ones = |dtype| Tensor::<1>::ones([1], &Device::flex()).cast(dtype);
        let step = AdamWStep { betas: [0.9, 0.999], ..STEP };
        let second = |dtype| {
            let (mut parameter, mut moments) = (ones(dtype), None);
            for time in 1..=20 {
                let gradient = ones(dtype) * if time == 1 { 1.0 } else { 0.0 };
                let update = AdamWStep { time, ..step }.update(parameter, gradient, moments);
                parameter = update.parameter;
                moments = Some([update.first, update.second]);
            }
            let [_, second] = moments.unwrap();
            second.into_scalar::<f64>()
        };
        let (found, exact) = (second(FloatDType::BF16), 1e-3 * 0.999_f64.powi(19));
        assert!((found / exact - 1.0).abs() < 1e-5, "{found} instead of {exact}");
    }
}
