//! Text for error messages: paths, shapes and similar names, printable and of bounded length.

use std::path::Path;

use stageline_checkpoint::Printable;

/// The most bytes that an error message shows of a path.
const MOST_PATH: usize = 500;

/// Makes a path printable, in at most 500 bytes.
pub(crate) fn path(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_PATH)
}

/// Makes a shape printable, in at most 100 bytes, such as `[2, 3]`.
pub(crate) fn shape(shape: &[usize]) -> Printable<'static> {
    Printable::new(format!("{shape:?}"))
}

/// Returns what to do about a missing tensor, as the end of the error message.
pub(crate) fn hint(similar: &[String]) -> String {
    let names: Vec<String> = similar.iter().take(3).map(|name| format!("`{}`", Printable::new(name))).collect();
    match names.as_slice() {
        [] => "check that config.json belongs to these weights".into(),
        names => format!("the most similar names are {}", names.join(", ")),
    }
}
