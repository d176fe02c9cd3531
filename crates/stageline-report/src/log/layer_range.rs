//! Describes the layers of a stage by the names of the first and the last one.

/// Returns the names of the first and the last of several consecutive layers as a string, such as `embeddings to
/// blocks.1`. Returns the name alone if there is one layer, and an empty string if there is none.
pub fn layer_range<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    match (names.next(), names.last()) {
        (Some(first), Some(last)) => format!("{first} to {last}"),
        (only, _) => only.unwrap_or_default().to_owned(),
    }
}
