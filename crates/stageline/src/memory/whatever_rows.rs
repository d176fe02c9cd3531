//! The memory that grows with the rows of a micro-batch, told apart from constants.

use crate::memory::estimate::StageEstimate;

use stageline_schedule::StageMemory;

/// The memory of a micro-batch on a stage that does not depend on its rows, in bytes: for example weights that a matrix
/// product packs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WhateverRows {
    pub(crate) activations: StageMemory,
    pub(crate) forward: u64,
    pub(crate) backward: u64,
}

impl WhateverRows {
    /// Returns the constant parts that are known without a second measurement: only a micro-batch's gradients of
    /// parameters.
    pub(crate) fn gradients(bytes: u64) -> Self {
        Self { activations: StageMemory::whole(0.0), forward: 0, backward: bytes }
    }

    /// Returns the constant parts by linear extrapolation to 0 rows, from a measurement with all rows and one with
    /// `share` of them, 0 < `share` < 1.
    pub(crate) fn between(one: &StageEstimate, all: &StageEstimate, share: f64) -> Self {
        let part = |few: f64, all: f64| (all - (all - few) / (1.0 - share)).clamp(0.0, few.min(all).max(0.0));
        Self {
            activations: StageMemory {
                forward: part(one.activations.forward, all.activations.forward),
                input_gradient: part(one.activations.input_gradient, all.activations.input_gradient),
            },
            forward: part(one.forward as f64, all.forward as f64) as u64,
            backward: part(one.backward as f64, all.backward as f64) as u64,
        }
    }
}
