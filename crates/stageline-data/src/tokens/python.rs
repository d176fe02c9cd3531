//! Writes values of chat templates as Python does: [`PythonStr`] as `str`, and [`PythonJson`] as `json.dumps`.

use std::fmt;
use std::io;

use minijinja::Value;
use minijinja::value::ValueKind;
use serde_json::ser::Formatter;

/// A template's value, displayed as by Python's `str`: a string as it is, and any other value as by `repr`. The value
/// must not contain itself.
pub(crate) struct PythonStr<'a>(pub(crate) &'a Value);

impl fmt::Display for PythonStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_str() {
            Some(text) => f.write_str(text),
            None if self.0.is_undefined() => Ok(()),
            None => write_repr(self.0, f),
        }
    }
}

/// Writes a value as Python's `repr` does. minijinja's `Debug` does the same for values without parts, except floats
/// and undefined values.
fn write_repr(value: &Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            let number = f64::try_from(value.clone()).map_err(|_| fmt::Error)?;
            f.write_str(&float(number))
        }
        ValueKind::Undefined => f.write_str("Undefined"),
        ValueKind::Map if !value.is_kwargs() => {
            f.write_str("{")?;
            for (index, name) in value.try_iter().into_iter().flatten().enumerate() {
                f.write_str(if index > 0 { ", " } else { "" })?;
                write_repr(&name, f)?;
                f.write_str(": ")?;
                write_repr(&value.get_item(&name).unwrap_or_default(), f)?;
            }
            f.write_str("}")
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let [open, close] = if value.is_tuple() { ["(", ")"] } else { ["[", "]"] };
            f.write_str(open)?;
            let mut length = 0;
            for inner in value.try_iter().into_iter().flatten() {
                f.write_str(if length > 0 { ", " } else { "" })?;
                write_repr(&inner, f)?;
                length += 1;
            }
            f.write_str(if value.is_tuple() && length == 1 { "," } else { "" })?;
            f.write_str(close)
        }
        _ => write!(f, "{value:?}"),
    }
}

/// Returns a float as Python's `repr` does: the shortest decimal number that reads as the same float, with an exponent
/// of at least two digits below 1e-4 and from 1e16.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    // Rust's `Debug` uses an exponent for the same numbers.
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

/// The layout of Python's `json.dumps`, in one line or, with an indent, with each item in a line of its own.
pub(crate) struct PythonJson {
    item: String,
    key: String,
    /// The spaces at the start of a line for each level of nesting; `None` for one line.
    indent: Option<String>,
    /// Number of lists and objects around the current position.
    depth: usize,
    /// Whether the list or object that ends at the current position has an item.
    has_items: bool,
}

impl PythonJson {
    /// Creates a layout with the separator `item` between items, `key` after each key, and an indent in spaces.
    pub(crate) fn new(item: String, key: String, indent: Option<usize>) -> Self {
        Self { item, key, indent: indent.map(|width| " ".repeat(width)), depth: 0, has_items: false }
    }

    fn begin<W: io::Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_items = false;
        writer.write_all(bracket)
    }

    fn begin_item<W: io::Write + ?Sized>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.has_items = true;
        if !is_first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.new_line(writer)
    }

    fn end<W: io::Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_items {
            self.new_line(writer)?;
        }
        self.has_items = true; // of the list or object around this one
        writer.write_all(bracket)
    }

    /// Begins a new line if the layout has an indent.
    fn new_line<W: io::Write + ?Sized>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }
}

impl Formatter for PythonJson {
    fn write_f64<W: io::Write + ?Sized>(&mut self, writer: &mut W, number: f64) -> io::Result<()> {
        writer.write_all(float(number).as_bytes())
    }

    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.begin_item(writer, is_first)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.begin_item(writer, is_first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::ser::Serializer;

    use super::*;

    /// Tests values against the output of Python's `str`.
    #[test]
    fn values_are_written_as_by_python() {
        let floats =
            [1e-5, 1.5e-5, 1e-4, 0.1, 1.0, -2.5, 123456789.125, 1e15, 1e16, -1.25e16, 1e100, 5e-324, 1.0 / 3.0];
        let expected = "[1e-05, 1.5e-05, 0.0001, 0.1, 1.0, -2.5, 123456789.125, 1000000000000000.0, 1e+16, -1.25e+16, 1e+100, \
                        5e-324, 0.3333333333333333]";
        assert_eq!(PythonStr(&Value::from(floats.to_vec())).to_string(), expected);
        let value = |json: &str| serde_json::from_str::<Value>(json).unwrap();
        for (json, expected) in [
            (
                r#"{"a": [1, true, null, "it's", {"b": 2e-7}], "c": {}}"#,
                r#"{'a': [1, True, None, "it's", {'b': 2e-07}], 'c': {}}"#,
            ),
            (r#""a'b\n""#, "a'b\n"),
            ("1e22", "1e+22"),
            ("false", "False"),
            ("[]", "[]"),
        ] {
            assert_eq!(PythonStr(&value(json)).to_string(), expected);
        }
        assert_eq!(PythonStr(&Value::from(f64::NAN)).to_string(), "nan");
        assert_eq!(PythonStr(&Value::from(f64::NEG_INFINITY)).to_string(), "-inf");
    }

    /// Tests JSON against the output of Python's `json.dumps`.
    #[test]
    fn json_is_written_as_by_python() {
        let value: serde_json::Value =
            serde_json::from_str(r#"{"a": [1, [], 2e-8], "b": {}, "c": {"d": [[1e16]]}}"#).unwrap();
        let written = |item: &str, indent| {
            let mut bytes = Vec::new();
            let layout = PythonJson::new(item.to_owned(), ": ".to_owned(), indent);
            value.serialize(&mut Serializer::with_formatter(&mut bytes, layout)).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(written(", ", None), r#"{"a": [1, [], 2e-08], "b": {}, "c": {"d": [[1e+16]]}}"#);
        let lines = [
            "{",
            "  \"a\": [",
            "    1,",
            "    [],",
            "    2e-08",
            "  ],",
            "  \"b\": {},",
            "  \"c\": {",
            "    \"d\": [",
            "      [",
            "        1e+16",
            "      ]",
            "    ]",
            "  }",
            "}",
        ];
        assert_eq!(written(",", Some(2)), lines.join("\n"));
    }
}
