//! The samples of a running forward pass (the training step, and a range of the step's batch), for layers that draw
//! random numbers for each sample.

use std::cell::Cell;

use crate::forward::thread_scope::during;

/// The samples of a micro-batch in a training run: the training step, and a range of samples within the step's batch.
/// Layers such as dropout draw their random numbers from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Samples {
    /// The index of the training step that processes a micro-batch, counted from 0.
    pub step: usize,
    /// The index of a micro-batch's first sample within the batch of the training step, counted from 0.
    pub first: usize,
    /// The number of samples in a micro-batch.
    pub count: usize,
}

thread_local! {
    /// The samples of the training forward pass that runs on this thread: the step, and a range of its batch. `None` if
    /// no training forward pass runs.
    static CURRENT: Cell<Option<Samples>> = const { Cell::new(None) };
}

impl Samples {
    /// Returns the samples of the training forward pass that runs on this thread: the step, and a range of its batch.
    /// Returns `None` if no training forward pass runs. A pipeline sets the samples around every forward pass of a
    /// training step, and not in an evaluation.
    pub fn current() -> Option<Self> {
        CURRENT.get()
    }

    /// Runs `forward` on this thread as the training forward pass of the given samples, and returns its result. The
    /// samples are a step, and a range of its batch. A training loop without a pipeline calls this function around
    /// every forward pass, so that layers such as dropout know the samples.
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
