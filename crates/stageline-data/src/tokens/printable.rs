//! Makes text from files and paths safe to print in an error message: no invisible characters, and a bounded length.

use std::path::Path;

/// The length in bytes at which a text is cut in an error message. The shown text is slightly longer, because the last
/// character stays whole and `...` follows.
const MOST: usize = 200;

/// The length in bytes at which a path is cut in an error message. The shown path is slightly longer, because the last
/// character stays whole and `...` follows.
const MOST_OF_PATH: usize = 600;

/// Returns a text for an error message, with invisible characters escaped, and cut after about 200 bytes.
pub(crate) fn printable(text: &str) -> String {
    escaped(text, MOST)
}

/// Returns a path as text for an error message, with invisible characters escaped, and cut after about 600 bytes.
pub(crate) fn shown(path: &Path) -> String {
    escaped(&path.to_string_lossy(), MOST_OF_PATH)
}

fn escaped(text: &str, most: usize) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if escaped.len() >= most {
            escaped.push_str("...");
            break;
        }
        match character {
            '\'' | '"' | '\\' => escaped.push(character),
            _ => escaped.extend(character.escape_debug()),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_text_stays_and_invisible_characters_are_escaped() {
        assert_eq!(printable(r#"it's "ü" \ 字"#), r#"it's "ü" \ 字"#);
        assert_eq!(printable("a\n\u{1b}[31m\u{202e}"), "a\\n\\u{1b}[31m\\u{202e}");
    }

    #[test]
    fn long_text_is_cut() {
        let cut = printable(&"a".repeat(1_000_000));
        assert_eq!((cut.len(), cut.ends_with("a...")), (MOST + 3, true));
        assert!(printable(&"\u{202e}".repeat(1_000)).len() < MOST + 20);
        assert_eq!(shown(Path::new(&"b".repeat(900))).len(), MOST_OF_PATH + 3);
    }
}
