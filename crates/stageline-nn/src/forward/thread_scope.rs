//! Sets thread-local variables for the duration of a call, and restores them when the call returns or panics.

use std::cell::{Cell, RefCell};
use std::thread::LocalKey;

/// Runs the closure `run` with the thread-local variable `key` set to `value`, and restores the variable's previous
/// value afterwards.
pub fn during<T: Copy, R>(key: &'static LocalKey<Cell<T>>, value: T, run: impl FnOnce() -> R) -> R {
    struct Restore<T: Copy + 'static>(&'static LocalKey<Cell<T>>, T);
    impl<T: Copy> Drop for Restore<T> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _restore = Restore(key, key.replace(value));
    run()
}

/// Runs the closure `run` with the thread-local variable `key` set to the collection `empty`, so that code in the
/// closure can add to it. Returns the closure's result and the collection. Restores the variable's previous value
/// afterwards, even after a panic.
pub fn collecting<T, R>(key: &'static LocalKey<RefCell<Option<T>>>, empty: T, run: impl FnOnce() -> R) -> (R, T) {
    struct Restore<T: 'static>(&'static LocalKey<RefCell<Option<T>>>, Option<T>);
    impl<T> Drop for Restore<T> {
        fn drop(&mut self) {
            self.0.set(self.1.take());
        }
    }
    let _restore = Restore(key, key.replace(Some(empty)));
    let result = run();
    (result, key.take().expect("the collection stays open for the time of the call"))
}
