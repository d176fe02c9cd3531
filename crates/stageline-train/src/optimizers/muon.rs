//! Muon for matrices, combined with AdamW for all other parameters ([`MuonAndAdamW`]).

use burn::optim::decay::WeightDecayConfig;
use burn::optim::{
    AdamWState, AdjustLrFn, Muon, MuonConfig, MuonState, Optimizer, RecordState, StateSink, StateSource,
};
use burn::tensor::{Device, Tensor};

use crate::optimizers::adamw::AdamW;

/// The optimizer of `--optimizer muon`: burn's Muon (Jordan et al., 2024, *Muon: An optimizer for hidden layers in
/// neural networks*) for parameters with two dimensions, and AdamW for all others.
///
/// burn's Muon alone panics for parameters that are not matrices. Matrix updates are scaled as in Liu et al., 2025
/// ([arXiv:2502.16982](https://arxiv.org/abs/2502.16982)) to about the size of AdamW's, so that both optimizers share
/// one learning rate.
#[derive(Clone)]
pub struct MuonAndAdamW {
    muon: Muon,
    others: AdamW,
}

/// Optimizer state of one parameter with `D` dimensions: Muon's for a matrix (`D` = 2), and AdamW's otherwise.
#[derive(Clone)]
#[allow(
    clippy::large_enum_variant,
    reason = "a state is moved once a step, and holds tensors, whose values are elsewhere"
)]
pub enum State<const D: usize> {
    /// The state of Muon, for a parameter with two dimensions (a matrix).
    Matrix(MuonState<D>),
    /// The state of AdamW, for a parameter with another number of dimensions.
    Other(AdamWState<D>),
}

impl MuonAndAdamW {
    /// Creates an optimizer that updates matrices with Muon, and all other parameters with `others`. Both use the
    /// weight decay of `others`.
    pub fn new(others: AdamW) -> Self {
        let muon = MuonConfig::new().with_weight_decay(Some(WeightDecayConfig::new(others.weight_decay)));
        let muon = muon.with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW).build();
        Self { muon, others }
    }
}

impl Optimizer for MuonAndAdamW {
    type State<const D: usize> = State<D>;

    fn step<const D: usize>(
        &self,
        lr: f64,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<State<D>>,
    ) -> (Tensor<D>, Option<State<D>>) {
        let (matrix, other) = match state {
            Some(State::Matrix(state)) => (Some(state), None),
            Some(State::Other(state)) => (None, Some(state)),
            None => (None, None),
        };
        if D == 2 {
            let (tensor, state) = self.muon.step(lr, tensor, grad, matrix);
            (tensor, state.map(State::Matrix))
        } else {
            let (tensor, state) = self.others.step(lr, tensor, grad, other);
            (tensor, state.map(State::Other))
        }
    }

    fn to_device<const D: usize>(state: State<D>, device: &Device) -> State<D> {
        match state {
            State::Matrix(state) => State::Matrix(Muon::to_device(state, device)),
            State::Other(state) => State::Other(AdamW::to_device(state, device)),
        }
    }
}

/// Saves and loads one parameter's optimizer state: the fields of Muon's state for a matrix, and those of AdamW's state
/// otherwise.
impl<const D: usize> RecordState for State<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        match self {
            Self::Matrix(state) => state.state_flatten(prefix, out),
            Self::Other(state) => state.state_flatten(prefix, out),
        }
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        if D == 2 {
            MuonState::state_unflatten(prefix, src, device).map(Self::Matrix)
        } else {
            AdamWState::state_unflatten(prefix, src, device).map(Self::Other)
        }
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    const RATE: f64 = 1e-2;

    /// Trains one parameter of ones for three steps with an optimizer. Each step has a different gradient. Returns the
    /// bits of the trained values, for comparison.
    fn trained<const D: usize, O: Optimizer>(optimizer: &O, shape: [usize; D]) -> Vec<u32> {
        let device = Device::flex();
        let mut tensor = Tensor::<D>::ones(shape, &device);
        let mut state = None;
        for step in 1..=3 {
            let values: Vec<f32> =
                (0..tensor.shape().num_elements()).map(|at| (at * step) as f32 * 0.1 - 0.3).collect();
            let gradient = Tensor::<D>::from_data(TensorData::new(values, shape), &device);
            (tensor, state) = optimizer.step(RATE, tensor, gradient, state);
        }
        tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    #[test]
    fn matrices_are_stepped_by_muon_and_other_parameters_by_adamw() {
        let both = MuonAndAdamW::new(AdamW { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.1 });
        assert_eq!(trained(&both, [3, 2]), trained(&both.muon, [3, 2]));
        assert_ne!(trained(&both, [3, 2]), trained(&both.others, [3, 2]));
        assert_eq!(trained(&both, [6]), trained(&both.others, [6]));
        assert_eq!(trained(&both, [1, 3, 2]), trained(&both.others, [1, 3, 2]));
    }
}
