//! Marks and reports whether the forward that runs on a thread is a recomputation in the backward.

use std::cell::Cell;

use crate::forward::thread_scope::during;

thread_local! {
    /// Whether the forward on this thread is a recomputation.
    static RECOMPUTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the forward on this thread is a recomputation. A layer must then count nothing a second time, and must draw
/// the same random numbers as in the first forward.
pub fn is_recomputation() -> bool {
    RECOMPUTING.get()
}

/// Runs `forward` on this thread as a recomputation, so that its layers count nothing a second time.
pub fn as_recomputation<R>(forward: impl FnOnce() -> R) -> R {
    during(&RECOMPUTING, true, forward)
}
