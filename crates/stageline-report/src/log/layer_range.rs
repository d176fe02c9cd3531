//! Names the consecutive layers of a stage in a few words.

/// Returns the first and the last of the names of consecutive layers, such as `embeddings to blocks.1`. Of a single
/// layer, returns the name; without layers, an empty text.
pub fn layer_range<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    match (names.next(), names.last()) {
        (Some(first), Some(last)) => format!("{first} to {last}"),
        (only, _) => only.unwrap_or_default().to_owned(),
    }
}
