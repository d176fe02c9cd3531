//! The environment of a chat template: Jinja with the settings, functions and filters of the Transformers library, and
//! with Python's formatting of values.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::ser::Serializer;

use crate::tokens::date::Date;
use crate::tokens::literals::as_in_python;
use crate::tokens::python::{PythonJson, PythonStr};

/// The maximum number of instructions that a template may execute; each 64 bytes of output count as one. It is far more
/// than a conversation needs, and limits the output to 640 MB. It does not bound the time of a single instruction, such
/// as the length of a list that was doubled many times.
const FUEL: u64 = 10_000_000;

/// The name of the chat template in its Jinja environment. It has no extension such as `.html`, so Jinja does not
/// HTML-escape values.
pub(crate) const NAME: &str = "chat";

/// Parses the template `source` in a Jinja environment that is configured as in the Transformers library. The
/// template's function `strftime_now` prints `date`.
pub(crate) fn environment(source: &str, date: Date) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(call_method);
    environment.set_formatter(write_as_python);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", to_string);
    // In Python, `None` cannot be iterated over.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // As in Python's Jinja, all values with a length and items are sequences, even strings and dictionaries.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    environment.add_function("raise_exception", |message: String| -> Result<(), Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: String| -> Result<String, Error> {
        date.format(&format).map_err(|message| Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_template_owned(NAME, as_in_python(&source.replace("\r\n", "\n")))?;
    Ok(environment)
}

/// Calls a method of a Python string, list or dictionary in a template. `format` is not supported, because its field
/// widths could fill the host memory.
fn call_method(state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let part = || arguments[0].as_str().unwrap_or_default();
    match (method, value.as_str(), arguments.len()) {
        ("format", ..) => Err(Error::new(ErrorKind::UnknownMethod, "`format` of strings is not supported")),
        ("removeprefix", Some(text), 1) => Ok(text.strip_prefix(part()).unwrap_or(text).into()),
        ("removesuffix", Some(text), 1) => Ok(text.strip_suffix(part()).unwrap_or(text).into()),
        _ => unknown_method_callback(state, value, method, arguments),
    }
}

/// Maximum nesting depth of lists and objects that a template may print; deeper ones are an error.
const DEEPEST: usize = 100;

/// Rejects a value that cannot be printed safely: it is nested deeper than [`DEEPEST`], which would overflow the stack,
/// may contain itself, or consists of more than 2^20 values, counting 64 bytes of a string as one.
fn check_depth(value: &Value) -> Result<(), Error> {
    fn is_within(value: &Value, depth: usize, visits: &mut usize) -> bool {
        *visits += 1 + value.as_str().map_or(0, str::len) / 64;
        if depth == 0 || *visits > 1 << 20 {
            return false;
        }
        match value.kind() {
            ValueKind::Map => value.try_iter().into_iter().flatten().all(|name| {
                let inner = value.get_item(&name).unwrap_or_default();
                is_within(&name, depth - 1, visits) && is_within(&inner, depth - 1, visits)
            }),
            ValueKind::Seq | ValueKind::Iterable => {
                value.try_iter().into_iter().flatten().all(|inner| is_within(&inner, depth - 1, visits))
            }
            ValueKind::Plain => false, // a namespace object, which may contain itself
            _ => true,
        }
    }
    match is_within(value, DEEPEST, &mut 0) {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::InvalidOperation, "the value is too deep or too large to be printed")),
    }
}

/// Prints a value in a rendered template as Python's Jinja does.
fn write_as_python(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    check_depth(value)?;
    Ok(write!(out, "{}", PythonStr(value))?)
}

/// The filter `string` of chat templates, which returns a value as Python's `str` does.
fn to_string(value: &Value) -> Result<Value, Error> {
    check_depth(value)?;
    Ok(if value.kind() == ValueKind::String { value.clone() } else { PythonStr(value).to_string().into() })
}

/// Whether a value and all of its parts are defined. Python's `json.dumps` raises an error for an undefined value.
fn is_defined(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined => false,
        ValueKind::Map => {
            let inner = |name| value.get_item(&name).is_ok_and(|inner| is_defined(&inner));
            value.try_iter().into_iter().flatten().all(inner)
        }
        ValueKind::Seq | ValueKind::Iterable => value.try_iter().into_iter().flatten().all(|inner| is_defined(&inner)),
        _ => true,
    }
}

/// The filter `tojson` of chat templates, which writes a value as Python's `json.dumps` does with `ensure_ascii=False`.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    if indent.is_some() && separators.is_some() {
        let message = "tojson takes either indent or separators";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let refused = |error: String| Error::new(ErrorKind::InvalidOperation, error);
    if indent.is_some_and(|indent| indent > WIDEST_INDENT) {
        return Err(refused(format!("tojson indents by at most {WIDEST_INDENT} blanks")));
    }
    check_depth(value)?;
    if !is_defined(value) {
        return Err(refused("tojson of a value that the conversation does not have".into()));
    }
    let [item, key] = match (indent, separators.as_deref()) {
        (Some(_), _) => [",", ": "].map(str::to_owned),
        (None, None) => [", ", ": "].map(str::to_owned),
        (None, Some([item, key])) => [item, key].map(Clone::clone),
        (None, Some(others)) => {
            return Err(refused(format!("tojson has two separators, and {} are given", others.len())));
        }
    };
    let mut bytes = Vec::new();
    let layout = PythonJson::new(item, key, indent);
    value.serialize(&mut Serializer::with_formatter(&mut bytes, layout)).map_err(|error| refused(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| refused(error.to_string()))
}

/// Maximum indent of `tojson`, in spaces; a larger one is an error, because it could fill the host memory.
const WIDEST_INDENT: usize = 64;
