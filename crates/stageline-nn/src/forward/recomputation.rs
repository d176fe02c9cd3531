//! Marks and reports whether the forward pass that runs on a thread is a recomputation in the backward pass.

use std::cell::Cell;

use crate::forward::thread_scope::during;

thread_local! {
    /// Whether this thread's forward pass recomputes activations for a backward pass.
    static RECOMPUTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the forward pass on this thread recomputes activations in a backward pass (activation checkpointing); false
/// in the first forward pass. In a recomputation, a layer must not update statistics or counters again. It must draw
/// the same random numbers as in the first forward pass.
pub fn is_recomputation() -> bool {
    RECOMPUTING.get()
}

/// Calls `forward` on this thread as a recomputation of activations. [`is_recomputation`] returns true while it runs,
/// so that layers do not update statistics or counters a second time.
pub fn as_recomputation<R>(forward: impl FnOnce() -> R) -> R {
    during(&RECOMPUTING, true, forward)
}
