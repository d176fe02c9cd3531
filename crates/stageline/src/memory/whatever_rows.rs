//! The part of a stage's memory that does not depend on the rows of a micro-batch. Predictions for other batch sizes
//! scale only the rest.

use stageline_schedule::StageMemory;

/// The memory of a micro-batch on a stage that does not depend on its rows, in bytes: for example weights that a matrix
/// product packs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WhateverRows {
    /// The constant part of a live micro-batch's activations.
    pub(crate) activations: StageMemory,
    /// The constant part of a forward's additional memory.
    pub(crate) forward: u64,
    /// The constant part of a backward's additional memory.
    pub(crate) backward: u64,
}

impl WhateverRows {
    /// Returns the constant parts that are known from a single measurement: only the gradients of parameters of one
    /// micro-batch, `bytes`, which count for the backward.
    pub(crate) fn gradients(bytes: u64) -> Self {
        Self { activations: StageMemory::whole(0.0), forward: 0, backward: bytes }
    }
}
