//! The memory of a stage that does not depend on the number of rows (samples) of a micro-batch. Predictions for other
//! batch sizes scale only the rest.

use stageline_schedule::StageMemory;

/// The part of a stage's memory that does not depend on the number of rows (samples) of a micro-batch, in bytes. An
/// example is the packed weights of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IndependentOfRows {
    /// The bytes of a micro-batch's activations that do not depend on its number of rows (samples).
    pub(crate) activations: StageMemory,
    /// The working memory of a forward pass (memory that is freed before the pass ends) that does not depend on the
    /// number of rows (samples), in bytes.
    pub(crate) forward: u64,
    /// The working memory of a backward pass (memory that is freed before the pass ends) that does not depend on the
    /// number of rows (samples), in bytes.
    pub(crate) backward: u64,
    /// The bytes of the largest parameter's gradient, if it is unknown whether the working memory of a backward pass
    /// includes this gradient; 0 if that was measured.
    pub(crate) perhaps: u64,
}

impl IndependentOfRows {
    /// Returns the memory that is assumed not to depend on the number of rows (samples), for a stage that was measured
    /// with only one number of rows. It consists of `bytes`, the parameter gradients of one micro-batch that are in
    /// memory at the same time, and perhaps of `largest`, the largest gradient, both in bytes. All other memory is
    /// assumed to grow with the rows.
    pub(crate) fn gradients(bytes: u64, largest: u64) -> Self {
        Self { activations: StageMemory::whole(0.0), forward: 0, backward: bytes, perhaps: largest }
    }
}
