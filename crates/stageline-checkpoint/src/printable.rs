//! Makes untrusted text safe for terminals and logs: [`Printable`] escapes invisible characters and bounds the length.
//!
//! Input: text or an error of unknown origin, and a length limit. Output: text that is safe to print. The code here
//! must not let an invisible character through.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Write};

/// Untrusted text, such as a name from a checkpoint, in a form that is safe to print.
///
/// - Invisible characters are escaped. These are control characters (line breaks too), zero-width characters, line
///   separators, spaces other than ` `, and format characters such as those that change the direction of text.
/// - Text of more than [`MOST_BYTES`](Self::MOST_BYTES) is truncated in its middle, where it gets `...`.
///
/// Letters, quotes and backslashes are unchanged, so printing a printed text again gives the same text.
///
/// ```
/// use stageline_checkpoint::Printable;
///
/// assert_eq!(Printable::new("blocks.3.up.weight").to_string(), "blocks.3.up.weight");
/// assert_eq!(Printable::new("\u{1b}[2J\n\u{202e}").to_string(), r"\u{1b}[2J\n\u{202e}");
/// assert_eq!(Printable::new("0123456789").at_most(7).to_string(), "01...89");
/// ```
#[derive(Clone)]
pub struct Printable<'a> {
    text: Cow<'a, str>,
    most: usize,
}

impl<'a> Printable<'a> {
    /// The default length limit of a printed [`Printable`], 100 bytes; a longer text is truncated.
    /// [`at_most`](Self::at_most) sets another limit.
    pub const MOST_BYTES: usize = 100;

    /// Makes untrusted text printable: escapes its invisible characters, and limits its length to
    /// [`MOST_BYTES`](Self::MOST_BYTES). Pass a path as `path.to_string_lossy()`.
    pub fn new(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: text.into(), most: Self::MOST_BYTES }
    }

    /// Joins an error's message and the messages of its causes, separated by colons, to one printable text. Its length
    /// is limited to [`MOST_BYTES`](Self::MOST_BYTES) unless [`at_most`](Self::at_most) sets another limit.
    pub fn with_causes(error: &dyn Error) -> Printable<'static> {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        Printable::new(text)
    }

    /// Sets the length limit of the printed text, in bytes and including escapes. A limit below 3, the length of `...`,
    /// counts as 3.
    pub fn at_most(self, bytes: usize) -> Self {
        Self { most: bytes.max(DOTS.len()), ..self }
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chars = || self.text.chars();
        if fitting(chars(), self.most) == self.text.len() {
            return write_escaped(f, &self.text);
        }
        let most = self.most - DOTS.len();
        let start = fitting(chars(), most - most / 2);
        let end = self.text.len() - fitting(chars().rev(), most / 2);
        write_escaped(f, &self.text[..start])?;
        f.write_str(DOTS)?;
        write_escaped(f, &self.text[end..])
    }
}

impl fmt::Debug for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Formats a number for an error message in at most 25 characters, with an exponent if it has many digits.
pub(crate) fn number(value: f64) -> String {
    let plain = value.to_string();
    if plain.len() <= 25 { plain } else { format!("{value:e}") }
}

/// The string `...`, which replaces the middle of a text that is too long to print.
const DOTS: &str = "...";

/// Returns how many bytes from the start of `chars` fit into `most` bytes of output, so that a long text can be
/// truncated. Invisible characters count with the length of their escapes; the result is in bytes before escaping.
fn fitting(chars: impl Iterator<Item = char>, most: usize) -> usize {
    let mut left = most;
    let fits = |&char: &char| {
        let after = left.checked_sub(if is_visible(char) { char.len_utf8() } else { char.escape_default().len() });
        left = after.unwrap_or(left);
        after.is_some()
    };
    chars.take_while(fits).map(char::len_utf8).sum()
}

fn write_escaped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.chars().try_for_each(|char| match is_visible(char) {
        true => f.write_char(char),
        false => write!(f, "{}", char.escape_default()),
    })
}

/// Whether a character is visible, alone or as an accent on the character before it.
fn is_visible(char: char) -> bool {
    let blank = || {
        matches!(
            char,
            '\u{34F}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}' | '\u{2800}' | '\u{3164}' | '\u{FFA0}'
                | '\u{180B}'..='\u{180F}' | '\u{FE00}'..='\u{FE0F}' | '\u{E0000}'..='\u{E0FFF}'
        )
    };
    // The standard library escapes unprintable characters, but also an accent at the start of a string. The `x` in
    // front prevents the latter.
    let is_printed = || {
        let pair = String::from_iter(['x', char]);
        pair.escape_debug().eq(pair.chars())
    };
    if char.is_ascii() { !char.is_ascii_control() } else { !blank() && is_printed() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str, most: usize) -> String {
        Printable::new(text).at_most(most).to_string()
    }

    #[test]
    fn visible_text_is_unchanged() {
        for text in ["", " a b ", "blocks.3/w", r#"`it's "so"\n"#, "größe", "e\u{301}te\u{301}", "層.重み", "🦀"]
        {
            assert_eq!(shown(text, 100), text);
        }
    }

    #[test]
    fn invisible_characters_are_escaped() {
        for (text, expected) in [
            ("\0\t\r\n\u{1b}\u{7f}", r"\u{0}\t\r\n\u{1b}\u{7f}"),
            ("\u{85}\u{9b}\u{a0}\u{ad}", r"\u{85}\u{9b}\u{a0}\u{ad}"),
            ("\u{200b}\u{202e}\u{2028}\u{2029}\u{2066}", r"\u{200b}\u{202e}\u{2028}\u{2029}\u{2066}"),
            ("\u{3164}\u{fe0f}\u{feff}\u{e0041}", r"\u{3164}\u{fe0f}\u{feff}\u{e0041}"),
        ] {
            assert_eq!(shown(text, 100), expected);
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [(0.0, "0"), (-1.5, "-1.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
            assert_eq!(number(value), expected);
        }
        assert_eq!((number(-1e308), number(5e-324)), ("-1e308".to_owned(), "5e-324".to_owned()));
        assert!(number(f64::MIN).len() <= 25 && number(-f64::MIN_POSITIVE).len() <= 25);
    }

    #[test]
    fn long_text_is_cut_in_its_middle_and_never_inside_an_escape() {
        assert_eq!(shown("0123456789", 10), "0123456789");
        assert_eq!(shown("0123456789", 9), "012...789");
        assert_eq!(shown("0123456789", 0), "...");
        assert_eq!(shown("ééééé", 8), "é...é");
        assert_eq!(shown(&"\u{1b}".repeat(1 << 20), 20), r"\u{1b}...\u{1b}");
        assert_eq!(Printable::new("x".repeat(101)).to_string().len(), 100);
    }

    proptest! {
        #[test]
        fn printed_text_is_bounded_and_printing_it_again_changes_nothing(text in "\\PC{0,40}|.{0,40}", most in 3usize..60) {
            let once = shown(&text, most);
            prop_assert!(once.len() <= most && !once.chars().any(char::is_control));
            prop_assert_eq!(shown(&once, most), once);
        }
    }
}
