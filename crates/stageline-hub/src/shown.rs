//! Formats paths, tensor shapes and similar tensor names for error messages, as printable text of bounded length.

use std::path::Path;

use stageline_checkpoint::Printable;

/// The largest number of bytes of a path in an error message about a model folder.
const MOST_PATH: usize = 500;

/// Returns a path as text for an error message about a model folder, escaped and cut to 500 bytes.
pub(crate) fn path(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_PATH)
}

/// Returns a tensor's shape as text for an error message, such as `[2, 3]`, cut if it is long.
pub(crate) fn shape(shape: &[usize]) -> Printable<'static> {
    Printable::new(format!("{shape:?}"))
}

/// Returns the last part of the error message for a missing tensor: the most similar tensor names. If there are none,
/// it is the advice to check that these are the weights of the model.
pub(crate) fn hint(similar: &[String]) -> String {
    let names: Vec<String> = similar.iter().take(3).map(|name| format!("`{}`", Printable::new(name))).collect();
    match names.as_slice() {
        [] => "check that these are the weights of the model".into(),
        names => format!("the most similar names are {}", names.join(", ")),
    }
}
