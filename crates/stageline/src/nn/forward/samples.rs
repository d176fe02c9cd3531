//! Which samples a forward sees, for layers that draw random numbers.

use std::cell::Cell;

use crate::nn::forward::thread_scope::during;

/// The samples of one micro-batch, by their place in the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Samples {
    /// The step, from 0.
    pub step: usize,
    /// The first sample's index in the batch of the step.
    pub first: usize,
    /// How many there are.
    pub count: usize,
}

thread_local! {
    static CURRENT: Cell<Option<Samples>> = const { Cell::new(None) };
}

impl Samples {
    /// Those of the training forward that runs on this thread, if one does. A pipeline says so around every forward of
    /// a step, and not around those of an evaluation.
    pub fn current() -> Option<Self> {
        CURRENT.get()
    }

    /// Runs a training forward of these samples on this thread: what a pipeline does, for loops without one.
    pub fn during<R>(self, forward: impl FnOnce() -> R) -> R {
        during(&CURRENT, Some(self), forward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_known_during_a_forward_only() {
        let samples = |first| Samples { step: 1, first, count: 2 };
        let inner = samples(0).during(|| {
            let inner = samples(4).during(Samples::current);
            assert_eq!(Samples::current(), Some(samples(0)));
            inner
        });
        assert_eq!(inner, Some(samples(4)));
        assert!(std::panic::catch_unwind(|| samples(0).during(|| panic!("as a forward may"))).is_err());
        assert_eq!(Samples::current(), None);
    }
}
