//! What a forward leaves to be done when its step has stepped.

use std::cell::RefCell;

type Effect = Box<dyn FnOnce()>;

thread_local! {
    static EFFECTS: RefCell<Vec<Effect>> = const { RefCell::new(Vec::new()) };
}

/// Leaves something to be done on this thread once the step that it belongs to has stepped. It is not done where the step
/// is skipped. Running statistics are kept so.
pub fn after_step(effect: impl FnOnce() + 'static) {
    EFFECTS.with_borrow_mut(|effects| effects.push(Box::new(effect)));
}

/// Runs a forward that was run before: what it leaves is forgotten.
pub(crate) fn unheard<R>(forward: impl FnOnce() -> R) -> R {
    let before = EFFECTS.with_borrow(Vec::len);
    let result = forward();
    let unheard = EFFECTS.with_borrow_mut(|effects| effects.split_off(before));
    drop(unheard);
    result
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
