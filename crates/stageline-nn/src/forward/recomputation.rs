//! Whether the running forward is a recomputation.

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

/// Runs a forward as a recomputation.
pub fn as_recomputation<R>(forward: impl FnOnce() -> R) -> R {
    during(&RECOMPUTING, true, forward)
}
