//! The place of the running layer in a stage: its index in every sequence of layers around it.

use std::cell::RefCell;

thread_local! {
    /// The indices of the layer that runs on this thread, one for each sequence of layers around it, the outermost
    /// first; empty outside [`in_layers`].
    static PATH: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Calls `forward` on this thread as the forward of a sequence of layers, each of which runs inside [`in_layer`].
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

/// Calls `forward` on this thread as the forward of the next layer of the sequence that runs inside [`in_layers`].
/// Outside such a sequence, as in a recomputation, the layer has no index.
pub fn in_layer<R>(forward: impl FnOnce() -> R) -> R {
    let result = forward();
    PATH.with_borrow_mut(|path| path.last_mut().into_iter().for_each(|index| *index += 1));
    result
}

/// Returns the path of the layer that runs on this thread, as burn names it in the paths of parameters, such as `1.3`;
/// an empty text outside a sequence of layers.
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
