//! Escapes strings, so that HTML and SVG show them literally.

/// Escapes `&`, `<`, `>` and quotes in a string, so that HTML and SVG show it literally.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escaped("<a href='x'>\"1 & 2\""), "&lt;a href=&#39;x&#39;&gt;&quot;1 &amp; 2&quot;");
    }
}
