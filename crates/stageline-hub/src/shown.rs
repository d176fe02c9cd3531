//! Formats paths, tensor shapes and similar tensor names for error messages, as printable strings of bounded length.

use std::path::Path;

use stageline_checkpoint::Printable;

/// Length limit, in bytes, for a path in an error message about a model folder; a longer path is truncated.
const MOST_PATH: usize = 500;

/// Formats a path for an error message about a model folder: escapes it, and truncates it to 500 bytes.
pub(crate) fn path(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_PATH)
}

/// Formats a tensor's shape for an error message, such as `[2, 3]`. A long shape is truncated.
pub(crate) fn shape(shape: &[usize]) -> Printable<'static> {
    Printable::new(format!("{shape:?}"))
}

/// Returns the advice at the end of the error message for a missing tensor: the most similar tensor names or, without
/// any, to check that these are the model's weights.
pub(crate) fn hint(similar: &[String]) -> String {
    let names: Vec<String> = similar.iter().take(3).map(|name| format!("`{}`", Printable::new(name))).collect();
    match names.as_slice() {
        [] => "check that these are the weights of the model".into(),
        names => format!("the most similar names are {}", names.join(", ")),
    }
}
