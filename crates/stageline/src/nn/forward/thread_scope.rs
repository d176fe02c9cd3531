//! What holds on a thread for the time of a call, and not after it, however it ends.

use std::cell::{Cell, RefCell};
use std::thread::LocalKey;

/// Runs with another value, and puts back the one before.
pub(crate) fn during<T: Copy, R>(key: &'static LocalKey<Cell<T>>, value: T, run: impl FnOnce() -> R) -> R {
    struct Restore<T: Copy + 'static>(&'static LocalKey<Cell<T>>, T);
    impl<T: Copy> Drop for Restore<T> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _restore = Restore(key, key.replace(value));
    run()
}

/// Runs with an empty collection, and gives what is then in it.
pub(crate) fn collecting<T, R>(
    key: &'static LocalKey<RefCell<Option<T>>>,
    empty: T,
    run: impl FnOnce() -> R,
) -> (R, T) {
    struct Close<T: 'static>(&'static LocalKey<RefCell<Option<T>>>);
    impl<T> Drop for Close<T> {
        fn drop(&mut self) {
            self.0.take();
        }
    }
    key.set(Some(empty));
    let _close = Close(key);
    let result = run();
    (result, key.take().expect("nothing else takes it away"))
}
