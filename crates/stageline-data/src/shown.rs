//! Formats paths and other untrusted strings for error messages: escapes invisible characters and limits the length.

use std::path::Path;

use stageline_checkpoint::Printable;

/// Length limit, in bytes, for a path in an error message; a longer path is truncated.
const MOST_OF_PATH: usize = 600;

/// Length limit, in bytes, for other strings in an error message, such as another library's message; longer ones are
/// truncated.
const MOST: usize = 200;

/// Formats a path for an error message: escapes invisible characters, and truncates the path to 600 bytes.
pub(crate) fn path(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_OF_PATH)
}

/// Formats a string for an error message: escapes invisible characters, and truncates the string to 200 bytes.
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
