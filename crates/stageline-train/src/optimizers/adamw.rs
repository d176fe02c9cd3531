//! The AdamW optimizer with exact bias corrections, computed in f64 ([`AdamW`]).

use burn::optim::{AdamWState, AdaptiveMomentumState, Optimizer};
use burn::tensor::{Device, Tensor};
use stageline_nn::kernels::{AdamWStep, AdamWUpdate};

/// AdamW (Loshchilov and Hutter, 2019, [arXiv:1711.05101](https://arxiv.org/abs/1711.05101)), with PyTorch's order of
/// operations. Its optimizer state is burn's `AdamWState`.
///
/// burn 0.22 computes the bias correction `1 - beta_2^t` in f32, with an error of about 1e-5 in the first steps, so
/// that losses differ from PyTorch's by about a millionth within 50 steps. This optimizer computes both bias
/// corrections in f64. On the CPU, it updates a parameter in one pass over its memory.
#[derive(Clone, Copy)]
pub struct AdamW {
    /// `beta_1` and `beta_2`: the decay rates of the moving averages of the gradient and of its square.
    pub betas: [f64; 2],
    /// The epsilon, which is added to the square root of the second moment.
    pub epsilon: f64,
    pub weight_decay: f32,
}

impl Optimizer for AdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: f64,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let (time, moments) = match state {
            Some(AdamWState { momentum }) => (momentum.time + 1, Some([momentum.moment_1, momentum.moment_2])),
            None => (1, None),
        };
        let step = AdamWStep {
            betas: self.betas,
            epsilon: self.epsilon,
            learning_rate: lr,
            weight_decay: self.weight_decay.into(),
            time,
        };
        let AdamWUpdate { parameter, first, second } = step.update(tensor, grad, moments);
        (parameter, Some(AdamWState::new(AdaptiveMomentumState::new(time, first, second))))
    }

    fn to_device<const D: usize>(mut state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        state.momentum = state.momentum.to_device(device);
        state
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;

    /// Tests 50 steps of the optimizer AdamW against the formula of AdamW, evaluated in f64.
    #[test]
    fn steps_match_the_definition_in_f64() {
        const RATE: f64 = 1e-3;
        let device = Device::flex();
        for (decay, betas, epsilon) in [(0.0, [0.9, 0.999], 1e-8), (0.1, [0.9, 0.999], 1e-8), (0.1, [0.8, 0.95], 1e-5)]
        {
            let optimizer = AdamW { betas, epsilon, weight_decay: decay };
            let start = [0.5, -0.25, 2.0];
            let mut tensor = Tensor::<1>::from_floats(start.map(|x| x as f32), &device);
            let (mut state, mut exact) = (None, start.map(|x: f64| (x, 0.0, 0.0)));
            for step in 1..=50 {
                let gradients = [0, 1, 2].map(|index| (f64::from(step * (index + 2)) * 0.7).sin() * 1e-3);
                let gradients = gradients.map(|gradient| gradient as f32);
                let gradient = Tensor::<1>::from_floats(gradients, &device);
                (tensor, state) = optimizer.step(RATE, tensor, gradient, state);
                for ((x, m, v), gradient) in exact.iter_mut().zip(gradients.map(f64::from)) {
                    *m = betas[0] * *m + (1.0 - betas[0]) * gradient;
                    *v = betas[1] * *v + (1.0 - betas[1]) * gradient * gradient;
                    let [m, v] = [*m / (1.0 - betas[0].powi(step)), *v / (1.0 - betas[1].powi(step))];
                    *x = *x * (1.0 - RATE * f64::from(decay)) - RATE * m / (v.sqrt() + epsilon);
                }
            }
            let moved = tensor.into_data();
            for ((found, start), (exact, ..)) in moved.iter::<f64>().zip(start).zip(exact) {
                // Each step rounds the parameter, which is an f32, by up to 6e-8 of its value.
                let off = (found - exact).abs();
                assert!(off < 50.0 * 6e-8 * start.abs().max(1.0), "{found} instead of {exact}");
            }
        }
    }
}
