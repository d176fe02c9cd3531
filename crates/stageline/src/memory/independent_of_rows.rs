//! The part of a stage's memory that is independent of the micro-batch size. Predictions for other micro-batch sizes
//! scale only the remaining memory.

use stageline_schedule::StageMemory;

/// The part of a stage's memory, in bytes, that is independent of the micro-batch size (the number of rows), such as a
/// matrix product's packed weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IndependentOfRows {
    /// The part of the activation memory, in bytes, that is independent of the micro-batch size.
    pub(crate) activations: StageMemory,
    /// The part of a forward pass's temporary memory (freed before the pass ends), in bytes, that is independent of the
    /// micro-batch size.
    pub(crate) forward: u64,
    /// The part of a backward pass's temporary memory (freed before the pass ends), in bytes, that is independent of
    /// the micro-batch size.
    pub(crate) backward: u64,
    /// The bytes of the largest parameter's gradient, if it is unknown whether the measured backward pass held this
    /// gradient in its temporary memory; otherwise 0.
    pub(crate) perhaps: u64,
}

impl IndependentOfRows {
    /// Returns the assumption for a stage that was measured with only one micro-batch size: only parameter gradients
    /// are independent of this size. `bytes` is the peak size of one micro-batch's parameter gradients outside the
    /// gradient sums, and `largest` the size of the largest gradient, which may come on top.
    pub(crate) fn gradients(bytes: u64, largest: u64) -> Self {
        Self { activations: StageMemory::whole(0.0), forward: 0, backward: bytes, perhaps: largest }
    }
}
