//! The memory of a stage that does not depend on the number of rows (samples) of a micro-batch. Predictions for other
//! batch sizes scale only the rest.

use stageline_schedule::StageMemory;

/// The parts of a stage's memory for a micro-batch that do not depend on the micro-batch's number of rows (samples), in
/// bytes: for example the packed weights of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WhateverRows {
    /// The part of the activations kept for one micro-batch that does not depend on the number of its rows (samples),
    /// in bytes.
    pub(crate) activations: StageMemory,
    /// The part of a forward's working memory that does not depend on the number of rows (samples) of its micro-batch,
    /// in bytes.
    pub(crate) forward: u64,
    /// The part of a backward's working memory that does not depend on the number of rows (samples) of its micro-batch,
    /// in bytes.
    pub(crate) backward: u64,
}

impl WhateverRows {
    /// Returns the memory that is assumed not to depend on the number of rows (samples) of a micro-batch, for a stage
    /// that was measured with only one number of rows. This memory consists of the `bytes` bytes of the parameter
    /// gradients of one micro-batch, which are a part of the backward's working memory. All other memory is assumed to
    /// grow with the rows.
    pub(crate) fn gradients(bytes: u64) -> Self {
        Self { activations: StageMemory::whole(0.0), forward: 0, backward: bytes }
    }
}
