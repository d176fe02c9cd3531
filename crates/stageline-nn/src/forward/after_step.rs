//! Effects of a forward pass that wait until the optimizer step succeeds, such as updates of running statistics.
//!
//! Effects are collected for each thread. A worker stores the effects of a step separately until the step is committed,
//! because a step may still be rolled back while the next one collects its own. The worker commits a step once all
//! stages are known to make it: when its next command arrives or, if steps overlap, when the common verdict (step the
//! optimizers, or skip) arrives.

use std::cell::RefCell;

use crate::forward::recomputation::is_recomputation;

/// An effect of a layer's forward pass, such as an update of running statistics. It is a closure that runs after the
/// optimizer step (see [`after_step`]).
type Effect = Box<dyn FnOnce()>;

thread_local! {
    /// The effects that the forward passes of the running step on this thread handed to [`after_step`].
    static EFFECTS: RefCell<Vec<Effect>> = const { RefCell::new(Vec::new()) };
    /// The effects of the last step. [`keep`] stores them until the step is committed or rolled back.
    static KEPT: RefCell<Vec<Effect>> = const { RefCell::new(Vec::new()) };
}

/// Runs the closure `effect` on this thread after the optimizer step of the current step. Layers use it to update
/// running statistics.
///
/// The effect is dropped without running if the step is skipped. A forward pass that recomputes activations registers
/// no effect, because the first forward pass has registered it. If steps overlap (`Pipeline::steps`), the effect may
/// run after forward passes of the next step.
pub fn after_step(effect: impl FnOnce() + 'static) {
    if is_recomputation() {
        return;
    }
    EFFECTS.with_borrow_mut(|effects| effects.push(Box::new(effect)));
}

/// Stores the effects of the current step until the step is committed or rolled back. Effects are closures, such as
/// updates of running statistics, that forward passes handed to [`after_step`]. The next step can then collect its own
/// effects. Effects of an earlier step that are still stored are dropped.
pub fn keep() {
    drop(KEPT.replace(EFFECTS.take()));
}

/// Drops the effects that [`keep`] stored, because their step is rolled back or skipped.
pub fn forget_kept() {
    drop(KEPT.take());
}

/// Runs the effects that [`keep`] stored, because their step is now committed.
pub fn do_kept() {
    KEPT.take().into_iter().for_each(|effect| effect());
}

/// Runs the effects that forward passes of the current step handed to [`after_step`]. A training loop without a
/// pipeline calls this function after its optimizer step. A pipeline needs no such call.
pub fn stepped() {
    EFFECTS.take().into_iter().for_each(|effect| effect());
}

/// Drops the effects that forward passes of the current step handed to [`after_step`]. A training loop without a
/// pipeline calls this function if it skips a step. A pipeline needs no such call.
pub fn skipped() {
    drop(EFFECTS.take());
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn effects_run_after_a_step_but_not_after_a_skipped_one() {
        let count = Rc::new(Cell::new(0));
        let leave = || {
            let count = Rc::clone(&count);
            after_step(move || count.set(count.get() + 1));
        };
        leave();
        skipped();
        stepped();
        assert_eq!(count.get(), 0);
        leave();
        leave();
        stepped();
        stepped();
        assert_eq!(count.get(), 2);
    }
}
