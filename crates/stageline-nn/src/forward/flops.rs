//! Counts the floating-point operations of a forward pass, as far as its layers report them.

use std::cell::Cell;

use crate::forward::thread_scope::during;

thread_local! {
    /// Floating-point operations (FLOPs) that layers on this thread have reported so far; `None` outside
    /// [`counting_flops`].
    static COUNT: Cell<Option<f64>> = const { Cell::new(None) };
}

/// Adds the floating-point operations (FLOPs) of a layer's forward pass to the count of [`counting_flops`] on this
/// thread. Does nothing outside [`counting_flops`]. A multiplication and an addition are two FLOPs.
///
/// The layers of this crate report their matrix products. A custom layer calls this function in its forward pass to be
/// counted as well.
pub fn report_flops(flops: f64) {
    if let Some(count) = COUNT.get() {
        COUNT.set(Some(count + flops));
    }
}

/// Calls `forward` on this thread, and returns its result with the number of floating-point operations (FLOPs) that its
/// layers have reported.
pub fn counting_flops<R>(forward: impl FnOnce() -> R) -> (R, f64) {
    during(&COUNT, Some(0.0), || {
        let result = forward();
        (result, COUNT.get().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_count_counts() {
        report_flops(1.0);
        let ((inner, outer), all) = counting_flops(|| {
            report_flops(2.0);
            let ((), inner) = counting_flops(|| report_flops(3.0));
            report_flops(4.0);
            (inner, COUNT.get())
        });
        assert_eq!((inner, outer, all, COUNT.get()), (3.0, Some(6.0), 6.0, None));
    }
}
