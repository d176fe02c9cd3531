//! Reads documents from a JSON-lines file. Each line is an object whose fields contain a text, a prompt and its
//! completion, or a conversation.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use crate::shown;
use crate::tokens::error::TokenError;
use crate::tokens::json_document::{Document, document};

/// Maximum length, in bytes, of a line in a JSON-lines file; a longer line is an error. Each line is read into host
/// memory as a whole.
const MOST: u64 = 256 << 20;

/// The byte order mark, which some programs write at the start of a UTF-8 file. It is not part of the text.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Reads the documents of a JSON-lines file in order, one from each line. Blank lines are skipped.
pub(crate) struct JsonLines<'a, R> {
    reader: R,
    path: PathBuf,
    field: &'a str,
    most: u64,
    line: u64,
}

impl<'a, R: BufRead> JsonLines<'a, R> {
    /// Creates a reader for a JSON-lines file. `field` is the name of the JSON field that contains a document's text,
    /// and `path` names the file in errors.
    pub(crate) fn new(reader: R, path: &Path, field: &'a str) -> Self {
        Self { reader, path: path.to_path_buf(), field, most: MOST, line: 0 }
    }

    /// Reads the next document of the JSON-lines file. Returns the document with its line number, counted from 1, or
    /// `None` after the last document.
    ///
    /// # Errors
    /// Returns [`TokenError::Line`] if the line is too long or is not a valid document, or [`TokenError::Io`] if the
    /// file cannot be read.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Document)>, TokenError> {
        loop {
            let mut bytes = Vec::new();
            let mut limited = (&mut self.reader).take(self.most + 1);
            limited.read_until(b'\n', &mut bytes).map_err(TokenError::io(&self.path))?;
            if bytes.is_empty() {
                return Ok(None);
            }
            self.line += 1;
            let faulty = |fault| TokenError::Line { path: self.path.clone(), line: self.line, fault };
            if bytes.len() as u64 > self.most {
                return Err(faulty(format!("has more than {} bytes; make it shorter", self.most)));
            }
            let mark = if self.line == 1 { BYTE_ORDER_MARK } else { "" };
            let line = bytes.strip_prefix(mark.as_bytes()).unwrap_or(&bytes);
            if !line.iter().all(u8::is_ascii_whitespace) {
                return self.document(line).map(|document| Some((self.line, document))).map_err(faulty);
            }
        }
    }

    /// Parses one JSON line into a document. The error is a message that says what is wrong with the line.
    fn document(&self, line: &[u8]) -> Result<Document, String> {
        document(line.trim_ascii_end(), self.field).unwrap_or_else(|error| {
            let message = error.to_string();
            let reason = message.rsplit_once(" at line ").map_or(message.as_str(), |(reason, _)| reason);
            Err(format!("is no JSON at byte {}: {}; correct the line", error.column(), shown::text(reason)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(file: &str, field: &str) -> Result<Vec<(u64, String)>, TokenError> {
        let mut lines = JsonLines::new(file.as_bytes(), Path::new("x.jsonl"), field);
        let mut all = Vec::new();
        while let Some((line, document)) = lines.next()? {
            let Document::Text(text) = document else { panic!("{document:?}") };
            all.push((line, text));
        }
        Ok(all)
    }

    fn refused(file: &str) -> String {
        let message = texts(file, "text").unwrap_err().to_string();
        message.strip_suffix("; correct the line").expect("a fix").to_string()
    }

    #[test]
    fn each_line_is_a_document_and_blank_lines_are_skipped() {
        let file = "{\"text\": \"one\\n\", \"id\": 1}\n\n  \r\n{\"id\": 2, \"text\": \"\\u5b57\"}\r\n{\"text\": \"\"}";
        let expected = [(1, "one\n".into()), (4, "字".into()), (5, String::new())];
        assert_eq!(texts(file, "text").unwrap(), expected);
        assert_eq!(texts("{\"body\": \"x\", \"text\": 1}", "body").unwrap(), [(1, "x".into())]);
        assert!(texts("", "text").unwrap().is_empty());
    }

    #[test]
    fn a_fault_is_named_with_its_line() {
        let in_line_3 = |line: &str| refused(&format!("{{\"text\": \"a\"}}\n\n{line}\n{{\"text\": \"b\"}}\n"));
        let has = "line 3 of x.jsonl has";
        assert_eq!(
            in_line_3("{\"b\": 1, \"a\": 2}"),
            format!("{has} no field `text`, `messages` or `prompt`, but has the fields b, a")
        );
        assert_eq!(in_line_3("{}"), format!("{has} no field `text`, `messages` or `prompt` and no other field"));
        assert_eq!(
            in_line_3("{\"text\": null}"),
            format!("{has} no field `text`, `messages` or `prompt`, but has the fields text (null)")
        );
        assert_eq!(in_line_3("[1]"), "line 3 of x.jsonl is an array and not an object");
        assert_eq!(in_line_3("{\"text\": \"a"), "line 3 of x.jsonl is no JSON at byte 11: EOF while parsing a string");
        assert_eq!(in_line_3("text"), "line 3 of x.jsonl is no JSON at byte 2: expected ident");
    }

    #[test]
    fn fields_that_are_not_used_may_have_any_value() {
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        for odd in ["1e400", "-1e-400", &"9".repeat(400), &deep, "{\"a\": [null, {}]}"] {
            let file = format!("{{\"odd\": {odd}, \"text\": \"a\"}}\n{{\"text\": \"b\", \"odd\": {odd}}}");
            assert_eq!(texts(&file, "text").unwrap(), [(1, "a".into()), (2, "b".into())]);
            let fault = refused(&format!("{{\"odd\": {odd}}}"));
            assert_eq!(fault, "line 1 of x.jsonl has no field `text`, `messages` or `prompt`, but has the fields odd");
        }
        let fault = refused(&format!("{{\"text\": {deep}}}"));
        assert_eq!(fault, "line 1 of x.jsonl has an array in the field `text` and not a string");
    }

    #[test]
    fn a_byte_order_mark_before_the_first_line_is_skipped() {
        assert_eq!(texts("\u{feff}{\"text\": \"a\"}\n", "text").unwrap(), [(1, "a".into())]);
        assert_eq!(texts("\u{feff}\r\n{\"text\": \"\u{feff}a\"}\n", "text").unwrap(), [(2, "\u{feff}a".into())]);
        assert!(refused("{\"text\": \"a\"}\n\u{feff}{\"text\": \"a\"}").contains("expected value"));
    }

    #[test]
    fn the_last_of_equal_fields_counts_and_many_fields_are_not_all_named() {
        assert_eq!(texts("{\"text\": 1, \"text\": \"b\"}", "text").unwrap(), [(1, "b".into())]);
        let many: Vec<_> = (0..100).map(|i| format!("\"f{i}\": {i}")).collect();
        let fault = refused(&format!("{{{}}}", many.join(", ")));
        assert!(fault.ends_with("has the fields f0, f1, f2, f3, f4, f5, f6, f7"), "{fault}");
        assert!(refused("{\"text\": \"a\"} {}").contains("trailing characters"));
    }

    #[test]
    fn names_of_fields_are_printable_and_bounded() {
        let message = refused(&format!("{{\"\\u001b[31m{}\": 1}}", "a".repeat(10_000)));
        assert!(message.contains("\\u{1b}[31maaa") && message.len() < 400, "{message}");
    }

    #[test]
    fn text_that_is_not_utf_8_is_a_fault() {
        let mut lines = JsonLines::new(&b"{\"text\": \"\xff\"}"[..], Path::new("x.jsonl"), "text");
        assert!(matches!(lines.next(), Err(TokenError::Line { line: 1, .. })));
    }

    #[test]
    fn a_line_above_the_limit_is_a_fault_and_not_a_lot_of_memory() {
        for line in [vec![b'x'; 100], vec![b' '; 100]] {
            let lines = JsonLines::new(line.as_slice(), Path::new("x.jsonl"), "text");
            let error = JsonLines { most: 10, ..lines }.next().unwrap_err();
            assert!(error.to_string().starts_with("line 1 of x.jsonl has more than 10 bytes"), "{error}");
        }
    }
}
