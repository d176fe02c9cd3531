//! Formats paths and other text of unknown origin for error messages: invisible characters are escaped, and the length
//! is bounded.

use std::path::Path;

use stageline_checkpoint::Printable;

/// The largest number of bytes of a path in an error message.
const MOST_OF_PATH: usize = 600;

/// The largest number of bytes of a text in an error message, such as the message of another library.
const MOST: usize = 200;

/// Returns a path for an error message, with invisible characters escaped, and cut to 600 bytes.
pub(crate) fn path(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_OF_PATH)
}

/// Returns a text for an error message, with invisible characters escaped, and cut to 200 bytes.
pub(crate) fn text(text: &str) -> Printable<'_> {
    Printable::new(text).at_most(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped_and_long_text_is_cut() {
        assert_eq!(text(r#"it's "ü" \ 字"#).to_string(), r#"it's "ü" \ 字"#);
        assert_eq!(text("a\n\u{1b}[31m\u{202e}").to_string(), "a\\n\\u{1b}[31m\\u{202e}");
        assert_eq!(path(Path::new("\u{3164}\u{2800}")).to_string(), "\\u{3164}\\u{2800}");
        assert_eq!(text(&"a".repeat(1_000_000)).to_string().len(), MOST);
        assert_eq!(path(Path::new(&"b".repeat(900))).to_string().len(), MOST_OF_PATH);
    }
}
