//! The samples of a running forward pass (the training step, and a range of the step's batch), for layers that draw
//! random numbers for each sample.

use std::cell::Cell;

use crate::forward::thread_scope::during;

/// The position of a micro-batch in a training run: the training step, and the range of samples within the step's
/// batch. Layers such as dropout seed their random numbers with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Samples {
    /// Zero-based index of the training step that processes this micro-batch.
    pub step: usize,
    /// Zero-based index of the micro-batch's first sample within the training step's batch.
    pub first: usize,
    /// The number of samples in this micro-batch.
    pub count: usize,
}

thread_local! {
    /// Training step and samples of this thread's running forward pass; `None` outside a training forward pass.
    static CURRENT: Cell<Option<Samples>> = const { Cell::new(None) };
}

impl Samples {
    /// Returns the training step and samples of this thread's running forward pass. A pipeline sets them around every
    /// forward pass of a training step. Returns `None` in evaluations and outside forward passes.
    pub fn current() -> Option<Self> {
        CURRENT.get()
    }

    /// Runs `forward` on this thread as the training forward pass of these samples, and returns its result. Call it
    /// around every forward pass of a training loop without a pipeline, so that layers such as dropout know the
    /// training step and the samples.
    pub fn during<R>(self, forward: impl FnOnce() -> R) -> R {
        during(&CURRENT, Some(self), forward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_set_only_during_a_forward() {
        let samples = |first| Samples { step: 1, first, count: 2 };
        let inner = samples(0).during(|| {
            let inner = samples(4).during(Samples::current);
            assert_eq!(Samples::current(), Some(samples(0)));
            inner
        });
        assert_eq!(inner, Some(samples(4)));
        assert!(std::panic::catch_unwind(|| samples(0).during(|| panic!("a forward panics"))).is_err());
        assert_eq!(Samples::current(), None);
    }
}
