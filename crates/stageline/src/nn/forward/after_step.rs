//! What a forward leaves to be done when its step has stepped.

use std::cell::RefCell;

use crate::nn::autograd::recompute::is_computed_again;

type Effect = Box<dyn FnOnce()>;

thread_local! {
    static EFFECTS: RefCell<Vec<Effect>> = const { RefCell::new(Vec::new()) };
    /// Of a step that is made, and may be undone.
    static KEPT: RefCell<Vec<Effect>> = const { RefCell::new(Vec::new()) };
}

/// Leaves something to be done on this thread once the step that it belongs to has stepped. It is not done where the step
/// is skipped, nor where the forward is one that was computed before. Running statistics are kept so. Where steps overlap
/// ([`Pipeline::steps`](crate::Pipeline::steps)) it may be done when forwards of the next step have been.
pub fn after_step(effect: impl FnOnce() + 'static) {
    if is_computed_again() {
        return;
    }
    EFFECTS.with_borrow_mut(|effects| effects.push(Box::new(effect)));
}

/// Keeps what was left apart from what comes, in place of what was kept before.
pub(crate) fn keep() {
    drop(KEPT.replace(EFFECTS.take()));
}

/// Forgets what was kept.
pub(crate) fn forget_kept() {
    drop(KEPT.take());
}

/// Does what was kept.
pub(crate) fn do_kept() {
    KEPT.take().into_iter().for_each(|effect| effect());
}

/// Does what was left: what a pipeline does after its optimizers, for loops without one.
pub fn stepped() {
    EFFECTS.take().into_iter().for_each(|effect| effect());
}

/// Forgets what was left: what a pipeline does where a step is skipped, for loops without one.
pub fn skipped() {
    drop(EFFECTS.take());
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn only_a_step_that_steps_has_effects() {
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
