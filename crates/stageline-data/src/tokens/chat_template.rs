//! The chat template of a model's folder, which turns a conversation into text: [`ChatTemplate`].

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use regex::Regex;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use sha2::{Digest, Sha256};

use crate::tokens::error::TokenError;
use crate::tokens::format::hex;
use crate::tokens::message::{Chat, Message};
use crate::tokens::regular::open_file;

/// The names of the files with a chat template in a model's folder. The first one replaces that in the second.
const TEMPLATE_FILE: &str = "chat_template.jinja";
const CONFIG_FILE: &str = "tokenizer_config.json";

/// The largest length, in bytes, of a file with a chat template.
const MOST: u64 = 16 << 20;

/// The number of steps after which a template is stopped; 64 bytes that it makes count as a step. It is far more than a
/// conversation needs, and a template makes at most 640 MB.
const FUEL: u64 = 10_000_000;

/// The marks that replace `{% generation %}` and `{% endgeneration %}` in a template. Unicode reserves these two
/// characters for the use within programs.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// The names of a tokenizer's special tokens, which templates read as variables.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A chat template in the language Jinja, which turns the messages of a conversation into the text that a model reads.
///
/// It is rendered as by `apply_chat_template` of the Transformers library: with the same settings of Jinja, variables,
/// functions and filters, and with the methods of Python's strings and dictionaries.
///
/// A folder may have a template that fails, and still be used for texts. So a template reports its faults when it is
/// used.
pub(crate) struct ChatTemplate {
    path: PathBuf,
    environment: Result<Environment<'static>, String>,
    special_tokens: Value,
    fingerprint: String,
}

/// The name of the template in its environment. Without an ending such as `.html`, nothing is escaped.
const NAME: &str = "chat";

impl ChatTemplate {
    /// Reads the chat template of a model's folder from its `chat_template.jinja`, or else from its
    /// `tokenizer_config.json`; `None` if neither has one.
    pub(crate) fn in_folder(folder: &Path) -> Option<Self> {
        let [template, config] = [TEMPLATE_FILE, CONFIG_FILE].map(|name| folder.join(name));
        let (path, source, special_tokens) = match (text_of(&template), settings(&config)) {
            (Ok(None), Err(fault)) => (config, Err(fault), Vec::new()),
            (Ok(None), Ok(settings)) => (config, Ok(in_settings(&settings)?.to_owned()), special_tokens(&settings)),
            (Err(fault), _) => (template, Err(fault), Vec::new()),
            (Ok(Some(_)), Err(fault)) => (config, Err(fault), Vec::new()),
            (Ok(Some(source)), Ok(settings)) => (template, Ok(source), special_tokens(&settings)),
        };
        let hash = Sha256::new().chain_update(format!("{source:?}{special_tokens:?}"));
        let environment = source.and_then(|source| environment(&source).map_err(|error| error.to_string()));
        let special_tokens = Value::from_pairs(special_tokens);
        Some(Self { path, environment, special_tokens, fingerprint: hex(&hash.finalize()) })
    }

    /// Returns a text that identifies the template and the special tokens that it writes.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns a conversation as text. If `asks_for_answer`, the text ends with the beginning of an answer.
    ///
    /// # Errors
    /// Returns [`TokenError::Template`] if the template fails or refuses the messages.
    pub(crate) fn render(&self, messages: &[Message], asks_for_answer: bool) -> Result<Chat, TokenError> {
        let rendered = self.environment.as_ref().map_err(Clone::clone).and_then(|environment| {
            let values = messages.iter().map(|message| value_of(message).map_err(|error| error.to_string()));
            let variables = context! {
                messages => values.collect::<Result<Vec<_>, _>>()?,
                add_generation_prompt => asks_for_answer,
                tools => (),
                documents => (),
                ..self.special_tokens.clone()
            };
            let rendered = environment.get_template(NAME).and_then(|template| template.render(variables));
            unmarked(&rendered.map_err(|error| error.to_string())?)
        });
        rendered.map_err(|message| TokenError::Template { path: self.path.clone(), message })
    }
}

/// Returns a message as templates read it: without the fields that are null, as in the Transformers library.
fn value_of(message: &Message) -> serde_json::Result<Value> {
    let fields: Value = serde_json::from_str(message.json())?;
    let names = fields.try_iter().into_iter().flatten();
    let values = names.filter_map(|name| fields.get_item(&name).ok().map(|value| (name, value)));
    Ok(Value::from_pairs(values.filter(|(_, value)| !value.is_none())))
}

/// Returns the text of a file, `None` if there is no such file, or what is wrong with it.
fn text_of(path: &Path) -> Result<Option<String>, String> {
    let mut text = String::new();
    match open_file(path, MOST) {
        Ok(mut file) => file.read_to_string(&mut text).map_err(|error| error.to_string())?,
        Err(TokenError::PathNotFound { .. }) => return Ok(None),
        Err(other) => return Err(other.to_string()),
    };
    Ok(Some(text))
}

/// Returns the settings of a tokenizer, `null` if there is no such file, or what is wrong with it.
fn settings(path: &Path) -> Result<serde_json::Value, String> {
    let text = text_of(path)?;
    text.map_or(Ok(serde_json::Value::Null), |text| serde_json::from_str(&text).map_err(|error| error.to_string()))
}

/// Returns the template in the settings of a tokenizer: a string, or that with the name `default` in a list.
fn in_settings(settings: &serde_json::Value) -> Option<&str> {
    let found = &settings["chat_template"];
    let is_default = |entry: &&serde_json::Value| entry["name"] == "default";
    found.as_str().or_else(|| found.as_array()?.iter().find(is_default)?["template"].as_str())
}

/// Returns the names and the texts of the special tokens in the settings of a tokenizer. A token is a string, or an
/// object with its text as `content`.
fn special_tokens(settings: &serde_json::Value) -> Vec<(&'static str, String)> {
    let text = |name: &&'static str| {
        let found = &settings[*name];
        Some((*name, found.as_str().or_else(|| found["content"].as_str())?.to_owned()))
    };
    SPECIAL_TOKENS.iter().filter_map(text).collect()
}

/// Returns the environment of a template, as the Transformers library sets it.
fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_formatter(write_as_python);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<(), Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_template_owned(NAME, marked(source))?;
    Ok(environment)
}

/// Replaces the tags `{% generation %}` and `{% endgeneration %}` by the characters of [`MARKS`]. Each is written in a
/// block of its own, so that blanks before and after the tag are removed as before and after other blocks.
fn marked(source: &str) -> String {
    let tag = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("the expression is valid");
    let block = |found: &regex::Captures| {
        let mark = MARKS[usize::from(found.get(2).is_some())];
        format!("{{%{} if true %}}{mark}{{% endif {}%}}", &found[1], &found[3])
    };
    tag.replace_all(source, block).into_owned()
}

/// Why the marks of a rendered text are refused.
const NO_BORDER: &str = "an answer that it marks by `generation` has no beginning or no end";

/// Removes the [`MARKS`] from a rendered text, and returns the text and the ranges between them; an error in words if a
/// range has no end.
fn unmarked(rendered: &str) -> Result<Chat, String> {
    let mut chat = Chat::default();
    let mut start = None;
    for piece in rendered.split_inclusive(MARKS) {
        let (text, mark) = match piece.chars().next_back().filter(|last| MARKS.contains(last)) {
            Some(mark) => (&piece[..piece.len() - mark.len_utf8()], Some(mark)),
            None => (piece, None),
        };
        chat.text.push_str(text);
        match (mark, start.take()) {
            (Some(mark), None) if mark == MARKS[0] => start = Some(chat.text.len()),
            (Some(mark), Some(start)) if mark == MARKS[1] => chat.answers.push(start..chat.text.len()),
            (None, None) => {}
            _ => return Err(NO_BORDER.into()),
        }
    }
    if start.is_some() {
        return Err(NO_BORDER.into());
    }
    chat.answers.retain(|answer| !answer.is_empty());
    Ok(chat)
}

/// Writes a value as Jinja in Python does, which has other names for three values.
fn write_as_python(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let text = if value.is_none() {
        "None"
    } else if value.kind() == ValueKind::Bool {
        if value.is_true() { "True" } else { "False" }
    } else {
        return minijinja::escape_formatter(out, state, value);
    };
    Ok(out.write_str(text)?)
}

/// The filter `tojson` of chat templates, which writes a value as Python's `json.dumps` does with `ensure_ascii=False`.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let refused = |error: String| Error::new(ErrorKind::InvalidOperation, error);
    if indent.is_some_and(|indent| indent > WIDEST_INDENT) {
        return Err(refused(format!("tojson indents by at most {WIDEST_INDENT} blanks")));
    }
    let mut bytes = Vec::new();
    let written = match indent {
        Some(width) => {
            let blanks = " ".repeat(width);
            value
                .serialize(&mut Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(blanks.as_bytes())))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)),
    };
    written.map_err(|error| refused(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| refused(error.to_string()))
}

/// The largest number of blanks by which `tojson` indents. More of them would fill the memory.
const WIDEST_INDENT: usize = 64;

/// The layout of Python's `json.dumps`: on one line, with a blank after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
