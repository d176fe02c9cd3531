//! Rewrites escapes in the string literals of a chat template, so that minijinja reads them as Python does:
//! [`as_in_python`].

/// Returns the template `source` with string literals that mean in minijinja what they mean in Python. Only literals
/// within `{{ }}` and `{% %}` change; text, raw blocks and comments stay as they are. minijinja and Python differ in
/// these escapes:
///
/// - A backslash at the end of a line: Python removes both the backslash and the line end, and minijinja keeps them.
/// - `\/`: Python keeps the backslash, and minijinja removes it.
/// - `\a`, `\v` and `\U0001F600`: minijinja does not know them.
///
/// Python's `\N{...}`, a character by its name, is not supported: the rendered text contains it literally.
pub(crate) fn as_in_python(source: &str) -> String {
    let mut found = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (text, tag) = rest.split_at(start);
        found.push_str(text);
        rest = match tag.as_bytes().get(1) {
            Some(b'{') => expression(tag, "}}", &mut found),
            Some(b'%') if is_raw(tag) => copy_up_to("endraw", tag, &mut found),
            Some(b'%') => expression(tag, "%}", &mut found),
            Some(b'#') => copy_up_to("#}", tag, &mut found),
            _ => copy_up_to("{", tag, &mut found),
        };
    }
    found + rest
}

/// Whether the statement at the start of `tag` begins a raw block (`{% raw %}`), whose contents are text and not
/// template code.
fn is_raw(tag: &str) -> bool {
    let inside = tag[2..].trim_start_matches(['-', '+']).trim_start();
    inside.strip_prefix("raw").is_some_and(|rest| rest.trim_start().trim_start_matches(['-', '+']).starts_with("%}"))
}

/// Appends `text` to `found`, up to and including the first occurrence of `end`. If `end` does not occur, appends the
/// whole text. Returns the rest of `text`.
fn copy_up_to<'a>(end: &str, text: &'a str, found: &mut String) -> &'a str {
    let (copied, rest) = text.split_at(text.find(end).map_or(text.len(), |at| at + end.len()));
    found.push_str(copied);
    rest
}

/// Appends the expression or statement at the start of `tag` to `found`, with its string literals rewritten. Returns
/// the rest of `tag`, which begins with the closing braces `end`. Braces inside brackets do not end the expression.
fn expression<'a>(tag: &'a str, end: &str, found: &mut String) -> &'a str {
    let (begin, mut rest) = tag.split_at(2);
    found.push_str(begin);
    let mut depth = 0_usize;
    while depth > 0 || !rest.starts_with(end) {
        let Some(next) = rest.chars().next() else { break };
        found.push(next);
        rest = &rest[next.len_utf8()..];
        match next {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '"' | '\'' => rest = literal(next, rest, found),
            _ => {}
        }
    }
    rest
}

/// Appends a string literal to `found`, with its escapes rewritten. `rest` begins after the opening `quote`. Returns
/// the text after the closing quote.
fn literal<'a>(quote: char, mut rest: &'a str, found: &mut String) -> &'a str {
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        if next == '\\' {
            rest = escape(rest, found);
            continue;
        }
        found.push(next);
        if next == quote {
            break;
        }
    }
    rest
}

/// Appends an escape to `found`, in a form that minijinja reads as Python does. `rest` begins after the backslash.
/// Returns the text after the escape. If Python does not know the escape, its backslash is kept as a character of the
/// literal.
fn escape<'a>(rest: &'a str, found: &mut String) -> &'a str {
    let Some(kind) = rest.chars().next() else { return rest };
    let after = &rest[kind.len_utf8()..];
    match kind {
        '\n' => {}
        'a' => found.push('\u{7}'),
        'v' => found.push('\u{b}'),
        'U' => {
            let digits = after.get(..8).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
            if let Some(character) = number.and_then(char::from_u32) {
                found.push(character);
                return &after[8..];
            }
            found.push_str(r"\\U");
        }
        '\\' | '"' | '\'' | 'b' | 'f' | 'n' | 'r' | 't' | 'u' | 'x' | '0'..='7' => found.extend(['\\', kind]),
        _ => found.extend(['\\', '\\', kind]),
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::date::Date;
    use crate::tokens::jinja::{NAME, environment};

    /// Renders a template that prints a string literal, and compares the result with Python's value of the literal.
    #[test]
    fn escapes_are_those_of_python() {
        for (literal, expected) in [
            ("\"Paris.\\\nYour\"", "Paris.Your"),
            (r#""\/ \d \s+ \%""#, r"\/ \d \s+ \%"),
            (r#""\U0001F600 \u00e9 \x41\101""#, "\u{1F600} \u{e9} AA"),
            (r#"{"a": {"b": "\U0001F600"}}["a"]["b"] ~ "\/""#, "\u{1F600}\\/"),
            (r#""\a\b\f\v|\t\r\n""#, "\u{7}\u{8}\u{c}\u{b}|\t\r\n"),
            (r#"'it\'s \"so\" \\n }} %}'"#, r#"it's "so" \n }} %}"#),
            (r#""a" ~ '\\' ~ "\"""#, r#"a\""#),
        ] {
            for template in [format!("{{{{ {literal} }}}}"), format!("{{% set text = {literal} %}}{{{{ text }}}}")] {
                let environment = environment(&template, Date::now()).unwrap();
                let rendered = environment.get_template(NAME).unwrap().render(()).unwrap();
                assert_eq!(rendered, expected, "{template}");
            }
        }
    }

    #[test]
    fn text_raw_blocks_and_comments_stay_as_they_are() {
        for template in [
            r#"{% raw %}{{ "\/" }} it's{% endraw %}{{ "y" }}"#,
            r#"{%- raw -%}{% set a = '\/' %}{%- endraw -%}"#,
            "{a} {{ {'b': {}} }} {",
            r"a \/ b {{ c }} \n",
            r#"{# "\/" #}x{{ "y" }}"#,
            r#"{{ "no end"#,
            "{% if",
            "{# no end",
            "{{",
        ] {
            assert_eq!(as_in_python(template), template);
        }
    }
}
