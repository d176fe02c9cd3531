//! The position of the running layer in its stage: the layer's index, from 0, in each sequence of layers that contains
//! it.

use std::cell::RefCell;
use std::thread::panicking;

thread_local! {
    /// Position of the layer that runs on this thread: its zero-based index in each sequence of layers that contains
    /// it, outermost sequence first. Empty outside [`in_layers`].
    static PATH: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };

    /// Path of the innermost layer that panicked or returned an error in this thread's last outermost sequence of
    /// layers; empty if none failed.
    static FAILED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a sequence of layers by calling `forward`, and returns its result. `forward` must run each layer inside
/// [`in_layer`] or [`try_in_layer`], which count the layers, so that messages can name the running layer by its index.
/// If a layer panics, [`failed_layer`] returns its path.
pub fn in_layers<R>(forward: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            if panicking() {
                note_failure();
            }
            PATH.with_borrow_mut(|path| path.pop());
        }
    }
    PATH.with_borrow_mut(|path| {
        if path.is_empty() {
            FAILED.take();
        }
        path.push(0);
    });
    let _leave = Leave;
    forward()
}

/// Runs one layer of a sequence ([`in_layers`]) by calling `forward`, and returns its result. While the layer runs,
/// messages name it by its index in the innermost sequence. The next call runs the layer with the next index. Outside a
/// sequence, as in a recomputation, the layer has no index.
pub fn in_layer<R>(forward: impl FnOnce() -> R) -> R {
    let result = forward();
    go_on();
    result
}

/// Runs one layer of a sequence and counts it, like [`in_layer`], but for a layer that can return an error. After an
/// error, [`failed_layer`] returns the layer's path.
///
/// # Errors
/// Returns the error of `forward`.
pub fn try_in_layer<R, E>(forward: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
    let result = forward();
    match result {
        Ok(_) => go_on(),
        Err(_) => note_failure(),
    }
    result
}

/// Returns the path of the innermost layer that panicked or returned an error, such as `1.3` (layer 3 inside layer 1,
/// both counted from 0). Only this thread's last outermost sequence of layers counts; `None` if no layer failed in it.
pub fn failed_layer() -> Option<String> {
    Some(FAILED.with_borrow(String::clone)).filter(|path| !path.is_empty())
}

/// Advances this thread's layer path to the next layer of the innermost sequence, by adding 1 to the path's last index.
fn go_on() {
    PATH.with_borrow_mut(|path| path.last_mut().into_iter().for_each(|index| *index += 1));
}

/// Stores the running layer's path for [`failed_layer`], unless a nested layer has already failed.
fn note_failure() {
    FAILED.with_borrow_mut(|failed| {
        if failed.is_empty() {
            *failed = layer_path();
        }
    });
}

/// Returns the path of the layer that runs on this thread, in the form of burn's parameter paths. For example, `1.3` is
/// the layer 3 inside the layer 1, both counted from 0. Returns an empty string outside a sequence of layers.
pub(crate) fn layer_path() -> String {
    let indices = PATH.with_borrow(|path| path.iter().map(usize::to_string).collect::<Vec<_>>());
    indices.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_an_index_in_every_sequence_around_it() {
        let mut seen = Vec::new();
        in_layers(|| {
            in_layer(|| ());
            in_layer(|| {
                in_layers(|| {
                    in_layer(|| seen.push(layer_path()));
                    in_layer(|| seen.push(layer_path()));
                });
            });
            in_layer(|| seen.push(layer_path()));
        });
        in_layer(|| seen.push(layer_path()));
        assert_eq!(seen, ["1.0", "1.1", "2", ""]);
    }

    #[test]
    fn a_panic_leaves_the_sequence() {
        let panicked = std::panic::catch_unwind(|| in_layers(|| in_layer(|| panic!("a forward panics"))));
        assert!(panicked.is_err() && layer_path().is_empty());
    }

    #[test]
    fn the_innermost_layer_that_fails_is_named() {
        let inner = |fails: bool| {
            in_layers(|| {
                in_layer(|| ());
                in_layer(|| assert!(!fails, "a forward panics"));
            });
        };
        let outer = |fails: bool| {
            in_layers(|| {
                try_in_layer(|| Ok::<_, &str>(()))?;
                try_in_layer(|| Ok::<_, &str>(()))?;
                in_layer(|| inner(fails));
                try_in_layer(|| Err::<(), _>("a forward fails"))
            })
        };
        assert!(std::panic::catch_unwind(|| outer(true)).is_err());
        assert_eq!(failed_layer().as_deref(), Some("2.1"));
        assert_eq!(outer(false), Err("a forward fails"));
        assert_eq!(failed_layer().as_deref(), Some("3"));
        inner(false);
        assert_eq!(failed_layer(), None);
    }
}
