//! The position of the running layer in its stage: the layer's index, from 0, in each sequence of layers that contains
//! it.

use std::cell::RefCell;

thread_local! {
    /// The position of the layer that runs on this thread: its index, from 0, in each sequence of layers that contains
    /// it. The index in the outermost sequence comes first. Empty outside [`in_layers`].
    static PATH: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Calls `forward`, which runs a sequence of layers on this thread, and returns its result. Messages can then name the
/// running layer by its index, which counts the layers that ran inside [`in_layer`] before it. So `forward` must run
/// each layer inside [`in_layer`].
pub fn in_layers<R>(forward: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            PATH.with_borrow_mut(|path| path.pop());
        }
    }
    PATH.with_borrow_mut(|path| path.push(0));
    let _leave = Leave;
    forward()
}

/// Runs one layer of a sequence ([`in_layers`]) by calling `forward`, and returns its result. Messages name the running
/// layer by its index in the innermost sequence, and the next call has the next index. Outside a sequence, as in a
/// recomputation, the layer has no index.
pub fn in_layer<R>(forward: impl FnOnce() -> R) -> R {
    let result = forward();
    PATH.with_borrow_mut(|path| path.last_mut().into_iter().for_each(|index| *index += 1));
    result
}

/// Returns the path of the layer that runs on this thread, such as `1.3` (the layer 3 inside the layer 1, both counted
/// from 0), in the form of burn's parameter paths. Returns an empty text outside a sequence of layers.
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
}
