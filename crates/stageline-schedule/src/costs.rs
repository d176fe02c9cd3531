//! What computes and transfers take.

use crate::action::{Action, Compute};

/// What one stage's computes take, in any one unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCost {
    /// A forward.
    pub forward: f64,
    /// The input-gradient half of a backward.
    pub input_gradient: f64,
    /// The weight-gradient half of a backward.
    pub weight_gradient: f64,
}

/// What a plan's computes and transfers take, in any one unit of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Each stage's computes.
    pub stages: Vec<StageCost>,
    /// From the end of a send to the moment its receiver can take it. It occupies neither worker.
    pub latency: f64,
}

impl Costs {
    /// The same for all stages, a backward made of two equal halves, transfers free.
    pub fn uniform(stages: usize, forward: f64, backward: f64) -> Self {
        let half = backward / 2.0;
        let cost = StageCost { forward, input_gradient: half, weight_gradient: half };
        Self { stages: vec![cost; stages], latency: 0.0 }
    }

    pub(crate) fn of(&self, action: Action) -> f64 {
        let cost = self.stages[action.stage];
        match action.compute {
            Compute::Forward => cost.forward,
            Compute::Backward => cost.input_gradient + cost.weight_gradient,
            Compute::InputGradient => cost.input_gradient,
            Compute::WeightGradient => cost.weight_gradient,
        }
    }
}
