//! Runs the updates that a forward pass registers, such as new running statistics, only after the optimizer step
//! succeeds.
//!
//! Updates are collected per thread. A worker stores a step's updates separately until the step is committed, because
//! the step may still be rolled back while the next step's forward passes register theirs. The worker commits a step
//! once it knows that no stage skips it: from its next command or, if steps overlap, from the stages' common decision
//! whether to step the optimizers.

use std::cell::RefCell;

use crate::forward::recomputation::is_recomputation;

/// An update that a layer's forward pass registered with [`after_step`], such as new running statistics. The closure
/// runs after the optimizer step.
type Effect = Box<dyn FnOnce()>;

thread_local! {
    /// Updates that this thread's forward passes registered with [`after_step`] in the current step.
    static EFFECTS: RefCell<Vec<Effect>> = const { RefCell::new(Vec::new()) };
    /// Updates of the last finished step, which [`keep`] stored until that step is committed or rolled back.
    static KEPT: RefCell<Vec<Effect>> = const { RefCell::new(Vec::new()) };
}

/// Registers the closure `effect`, an update such as new running statistics, to run on this thread after the current
/// training step's optimizer step.
///
/// The update is dropped without running if the step is skipped. A forward pass that recomputes activations does not
/// register it a second time. If steps overlap (`Pipeline::steps`), the update may run after forward passes of the next
/// step.
pub fn after_step(effect: impl FnOnce() + 'static) {
    if is_recomputation() {
        return;
    }
    EFFECTS.with_borrow_mut(|effects| effects.push(Box::new(effect)));
}

/// Stores the updates that this step's forward passes registered with [`after_step`], such as new running statistics,
/// until the step is committed or rolled back. The next step can then register its own updates. Stored updates of an
/// earlier step are dropped without running.
pub fn keep() {
    drop(KEPT.replace(EFFECTS.take()));
}

/// Discards the updates that [`keep`] stored, without running them, because their step is rolled back or skipped.
pub fn forget_kept() {
    drop(KEPT.take());
}

/// Runs the updates that [`keep`] stored, such as new running statistics, because their step is now committed.
pub fn do_kept() {
    KEPT.take().into_iter().for_each(|effect| effect());
}

/// Runs the updates that this step's forward passes registered with [`after_step`], such as new running statistics. A
/// training loop without a pipeline calls this function after its optimizer step. A pipeline needs no such call.
pub fn stepped() {
    EFFECTS.take().into_iter().for_each(|effect| effect());
}

/// Discards the updates that this step's forward passes registered with [`after_step`], without running them. A
/// training loop without a pipeline calls this function if it skips a step. A pipeline needs no such call.
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
