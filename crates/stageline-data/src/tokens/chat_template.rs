//! The chat template of a model folder, which renders a conversation as text: [`ChatTemplate`].

use std::io::Read;
use std::path::{Path, PathBuf};

use minijinja::{Environment, Value};
use regex::Regex;
use sha2::{Digest, Sha256};

use crate::hex::hex;
use crate::tokens::chat_variables::ChatVariables;
use crate::tokens::date::Date;
use crate::tokens::error::TokenError;
use crate::tokens::jinja::{NAME, environment};
use crate::tokens::message::{Chat, Message};
use crate::tokens::panics::caught;
use crate::tokens::regular_file::open_file;

/// The files in a model folder that may contain a chat template: `TEMPLATE_FILE` takes precedence over `CONFIG_FILE`.
/// `TOOL_USE_FILE` contains the template for conversations with tools.
const TEMPLATE_FILE: &str = "chat_template.jinja";
const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";
const CONFIG_FILE: &str = "tokenizer_config.json";

/// The file that may define special tokens, in addition to [`CONFIG_FILE`].
const TOKENS_FILE: &str = "special_tokens_map.json";

/// Maximum length, in bytes, of a chat template file or tokenizer settings file; a longer one is an error.
const MOST: u64 = 16 << 20;

/// The characters that replace `{% generation %}` and `{% endgeneration %}` in a chat template, so that the answers can
/// be located in the rendered text. They are Unicode noncharacters, which do not occur in normal text.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// The names of a tokenizer's special tokens, which templates read as variables.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The Jinja chat template of a model folder, which renders the messages of a conversation as the text that a model
/// reads. A model folder may have another template for conversations with tools.
///
/// A template is rendered with the settings, variables and functions of `apply_chat_template` in the Transformers
/// library, and with most methods of Python's strings and dictionaries. Whole numbers of more than 64 bits become
/// floats, and very small and very large floats that `~` or `join` put into a text have no exponent.
///
/// A model with a broken template can still be used for plain text, so errors are reported only on rendering.
pub(crate) struct ChatTemplate {
    default: Template,
    /// The template for conversations with tools; `None` if they use the default template too.
    tool_use: Option<Template>,
    special_tokens: Vec<(&'static str, String)>,
    /// Added and special tokens in `tokenizer_config.json` or `special_tokens_map.json` that the tokenizer's vocabulary
    /// (`tokenizer.json`) lacks. A conversation whose rendered text contains one of them is rejected, because the
    /// tokenizer would split it into several ordinary tokens.
    missing: Vec<String>,
    fingerprint: String,
}

impl ChatTemplate {
    /// Reads the chat template of a model folder from its `chat_template.jinja`, or else from its
    /// `tokenizer_config.json`; `None` if neither has one. The template for conversations with tools is read from
    /// `additional_chat_templates`, or else from the same `tokenizer_config.json`. `has_token` tells whether the
    /// tokenizer's vocabulary has the given token.
    pub(crate) fn in_folder(folder: &Path, has_token: impl Fn(&str) -> bool) -> Option<Self> {
        let [template, tool_use, config] = [TEMPLATE_FILE, TOOL_USE_FILE, CONFIG_FILE].map(|name| folder.join(name));
        let of_config = settings(&config);
        let map = settings(&folder.join(TOKENS_FILE));
        let of_map = map.as_ref().unwrap_or(&serde_json::Value::Null);
        let special_tokens = of_config.as_ref().map(|config| special_tokens(config, of_map)).unwrap_or_default();
        let named = |name| of_config.as_ref().ok().and_then(|settings| in_settings(settings, name)).map(str::to_owned);
        let (path, source) = match (text_of(&template), &of_config) {
            (Err(fault), _) => (&template, Err(fault)),
            (_, Err(fault)) => (&config, Err(fault.clone())),
            (Ok(None), Ok(_)) => (&config, Ok(named("default")?)),
            (Ok(Some(source)), Ok(_)) => (&template, Ok(source)),
        };
        let tool_use = match text_of(&tool_use) {
            Ok(None) if path == &config => named("tool_use").map(|source| (&config, Ok(source))),
            Ok(source) => source.map(|source| (&tool_use, Ok(source))),
            Err(fault) => Some((&tool_use, Err(fault))),
        };
        let mut hash = Sha256::new().chain_update(format!("{source:?}{special_tokens:?}"));
        if let Some((_, source)) = &tool_use {
            hash.update(format!("{source:?}"));
        }
        let date = Date::now();
        let sources = [Some(&source), tool_use.as_ref().map(|(_, source)| source)];
        let prints_date = sources.into_iter().flatten().flatten().any(|source| source.contains("strftime_now"));
        // Today's date is not hashed, so that the token file of an earlier day is found again.
        if let Some(fixed) = date.fixed().filter(|_| prints_date) {
            hash.update(format!("{fixed:?}"));
        }
        let checked = |source: Result<String, String>| {
            let source = source?;
            map.as_ref().map_err(|fault| format!("{TOKENS_FILE} cannot be read: {fault}"))?;
            check_end(&source, of_config.as_ref().unwrap_or(&serde_json::Value::Null), &special_tokens)?;
            Ok(source)
        };
        let missing =
            of_config.as_ref().map(|config| missing_tokens(config, &special_tokens, has_token)).unwrap_or_default();
        Some(Self {
            default: Template::new(path, checked(source), &date),
            tool_use: tool_use.map(|(path, source)| Template::new(path, checked(source), &date)),
            special_tokens,
            missing,
            fingerprint: hex(&hash.finalize()),
        })
    }

    /// Returns a hash of the templates and special tokens. A different hash means that the tokens of a conversation may
    /// differ.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Renders a conversation as text. If `asks_for_answer`, the text ends with the generation prompt (the start of an
    /// answer).
    ///
    /// # Errors
    /// Returns [`TokenError::Template`] if the template fails or rejects the messages.
    pub(crate) fn render(
        &self,
        messages: &[Message],
        variables: &ChatVariables,
        asks_for_answer: bool,
    ) -> Result<Chat, TokenError> {
        let template = self.tool_use.as_ref().filter(|_| variables.tools().is_some()).unwrap_or(&self.default);
        let render = || template.render(self.variables(messages, variables, asks_for_answer)?);
        let rendered = caught("minijinja", render).and_then(|rendered| rendered).and_then(|chat| self.checked(chat));
        rendered.map_err(|message| TokenError::Template { path: template.path.clone(), message })
    }

    /// Rejects a rendered conversation `chat` that contains a special token missing from the tokenizer's vocabulary;
    /// returns any other conversation unchanged. The error is a message with the fix.
    fn checked(&self, chat: Chat) -> Result<Chat, String> {
        match self.missing.iter().find(|token| chat.text.contains(token.as_str())) {
            Some(token) => Err(format!(
                "it writes the token `{token}`, which {CONFIG_FILE} or {TOKENS_FILE} names and tokenizer.json does not have; write a \
                 tokenizer.json with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
            )),
            None => Ok(chat),
        }
    }

    /// Returns all variables that a chat template may read, with their values. `asks` is the value of
    /// `add_generation_prompt`. The error is a message that says why a variable's value is not valid JSON.
    fn variables(&self, messages: &[Message], variables: &ChatVariables, asks: bool) -> Result<Value, String> {
        let read = |json: &str| serde_json::from_str::<Value>(json).map_err(|error| error.to_string());
        let values = messages.iter().map(|message| value_of(message).map_err(|error| error.to_string()));
        let mut all = vec![("documents", Value::from(()))];
        all.extend(self.special_tokens.iter().map(|(name, text)| (*name, text.into())));
        for (name, json) in variables.others() {
            all.push((name, read(json)?));
        }
        all.push(("messages", values.collect::<Result<Value, _>>()?));
        all.push(("tools", variables.tools().map_or(Ok(Value::from(())), read)?));
        all.push(("add_generation_prompt", asks.into()));
        Ok(Value::from_pairs(all)) // if a name occurs twice, its last value is used
    }
}

/// A parsed chat template of a model folder.
struct Template {
    /// The path of the file that contains the chat template, for error messages.
    path: PathBuf,
    /// The Jinja environment with the parsed template, or a message that says why the template cannot be used.
    environment: Result<Environment<'static>, String>,
    /// Whether the template marks the answers (the parts to train on) by `{% generation %}`.
    has_marks: bool,
}

impl Template {
    /// Parses a chat template from its `source` text. The template's function `strftime_now` prints `date`. If `source`
    /// is an error message, or the text cannot be parsed, every rendering returns the error.
    fn new(path: &Path, source: Result<String, String>, date: &Date) -> Self {
        let has_marks = source.as_ref().is_ok_and(|source| tag().is_match(source));
        let parsed = |source: String| environment(&marked(&source), date.clone()).map_err(|error| error.to_string());
        let environment = source.and_then(parsed);
        Self { path: path.to_path_buf(), environment, has_marks }
    }

    /// Renders the template with `variables`. The error is a message that says why the template fails.
    fn render(&self, variables: Value) -> Result<Chat, String> {
        let environment = self.environment.as_ref().map_err(Clone::clone)?;
        if self.has_marks && variables.to_string().contains(MARKS) {
            return Err("a message or variable has a character by which answers are marked, U+FDD0 or U+FDD1".into());
        }
        let rendered = environment.get_template(NAME).and_then(|template| template.render(variables));
        let text = rendered.map_err(|error| error.to_string())?;
        if self.has_marks { unmarked(&text) } else { Ok(Chat { text, answers: Vec::new() }) }
    }
}

/// The message fields that may contain the model's reasoning ("thinking"). If a message has several of them, the first
/// in this list is used.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Converts a message to a template value. As in the Transformers library, null fields are left out. If any of several
/// fields ([`THOUGHTS`]) contains the model's reasoning, the template finds it both as `reasoning_content` and as
/// `thinking`.
fn value_of(message: &Message) -> serde_json::Result<Value> {
    let fields: Value = serde_json::from_str(message.json())?;
    let names = fields.try_iter().into_iter().flatten();
    let values = names.filter_map(|name| fields.get_item(&name).ok().map(|value| (name, value)));
    let mut values: Vec<_> = values.filter(|(_, value)| !value.is_none()).collect();
    let found = |name: &&str| values.iter().find(|(other, _)| other.as_str() == Some(name)).map(|(_, value)| value);
    if let Some(thoughts) = THOUGHTS.iter().find_map(found).cloned() {
        let has_thinking = found(&"thinking").is_some();
        values.retain(|(name, _)| name.as_str() != Some(THOUGHTS[0]));
        values.push((THOUGHTS[0].into(), thoughts.clone()));
        if !has_thinking {
            values.insert(0, ("thinking".into(), thoughts));
        }
    }
    Ok(Value::from_pairs(values))
}

/// Reads a text file; `None` if there is no such file. The error is a message that says why the file cannot be read.
fn text_of(path: &Path) -> Result<Option<String>, String> {
    let mut text = String::new();
    match open_file(path, MOST) {
        Ok(mut file) => file.read_to_string(&mut text).map_err(|error| error.to_string())?,
        Err(TokenError::PathNotFound { .. }) => return Ok(None),
        Err(other) => return Err(other.to_string()),
    };
    Ok(Some(text))
}

/// Parses the JSON file at `path`: `tokenizer_config.json` or `special_tokens_map.json`. Returns JSON `null` if the
/// file is missing. The error is a message that says why the file cannot be used.
fn settings(path: &Path) -> Result<serde_json::Value, String> {
    let text = text_of(path)?;
    text.map_or(Ok(serde_json::Value::Null), |text| serde_json::from_str(&text).map_err(|error| error.to_string()))
}

/// Returns the chat template named `name` from a tokenizer's settings, which have either a list of named templates or a
/// single one, named `default`. Returns `None` if there is no such template.
fn in_settings<'a>(settings: &'a serde_json::Value, name: &str) -> Option<&'a str> {
    let found = &settings["chat_template"];
    let has_name = |entry: &&serde_json::Value| entry["name"] == name;
    let single = found.as_str().filter(|_| name == "default");
    single.or_else(|| found.as_array()?.iter().find(has_name)?["template"].as_str())
}

/// Returns the names and strings of a tokenizer's special tokens, from the tokenizer's `settings` or, if these do not
/// mention a token, from `map` (the contents of `special_tokens_map.json`). A token is a string, or an object with the
/// string as `content`.
fn special_tokens(settings: &serde_json::Value, map: &serde_json::Value) -> Vec<(&'static str, String)> {
    let text = |name: &&'static str| {
        let found = settings.get(*name).or_else(|| map.get(*name))?;
        Some((*name, found.as_str().or_else(|| found["content"].as_str())?.to_owned()))
    };
    SPECIAL_TOKENS.iter().filter_map(text).collect()
}

/// Rejects a chat template (`source`) that writes `eos_token` although the tokenizer's settings do not define it,
/// because answers would be rendered without their end token. A template that tests or sets `eos_token` is accepted,
/// because it also works without the token.
///
/// # Errors
/// Returns a message that says where to add the token.
fn check_end(
    source: &str,
    settings: &serde_json::Value,
    special_tokens: &[(&'static str, String)],
) -> Result<(), String> {
    let expression = |text: &str| Regex::new(text).expect("the expression is valid");
    let source = expression(r"(?s)\{#.*?#\}").replace_all(source, "");
    let is_used = expression(r"\beos_token\b").is_match(&source);
    let asks = expression(r"\b(if|elif|and|or|not|set)\s+eos_token\b|\beos_token\s*(is\b|\|)").is_match(&source);
    let is_named = settings.get("eos_token").is_some() || special_tokens.iter().any(|(name, _)| *name == "eos_token");
    match is_used && !asks && !is_named {
        true => Err(format!(
            "it writes `eos_token`, which {CONFIG_FILE} and {TOKENS_FILE} do not name; add it to {CONFIG_FILE}"
        )),
        false => Ok(()),
    }
}

/// Returns the added and special tokens in a tokenizer's settings that its vocabulary lacks, so that conversations with
/// such a token can be rejected: it would be encoded as several ordinary tokens. `has_token` tells whether the
/// vocabulary has a token.
fn missing_tokens(
    settings: &serde_json::Value,
    special_tokens: &[(&'static str, String)],
    has_token: impl Fn(&str) -> bool,
) -> Vec<String> {
    let added = settings["added_tokens_decoder"].as_object().into_iter().flatten();
    let added = added.filter_map(|(_, token)| token["content"].as_str());
    let texts = added.chain(special_tokens.iter().map(|(_, text)| text.as_str()));
    texts.filter(|text| !text.trim().is_empty() && !has_token(text)).map(str::to_owned).collect()
}

/// Returns the regular expression that matches the tags `{% generation %}` and `{% endgeneration %}`, including their
/// whitespace control (`-` or `+`).
fn tag() -> Regex {
    Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("the expression is valid")
}

/// Replaces the tags `{% generation %}` and `{% endgeneration %}` by the characters of [`MARKS`]. Each character gets
/// its own Jinja block, so that whitespace around it is trimmed as around other blocks.
fn marked(source: &str) -> String {
    let block = |found: &regex::Captures| {
        let mark = MARKS[usize::from(found.get(2).is_some())];
        format!("{{%{} if true %}}{mark}{{% endif {}%}}", &found[1], &found[3])
    };
    tag().replace_all(source, block).into_owned()
}

/// The error message for an answer in a rendered conversation with only one of its two [`MARKS`] (start and end).
const NO_BORDER: &str = "an answer that it marks by `generation` has no beginning or no end";

/// Extracts the answers from a rendered text: removes the [`MARKS`] that enclose them, and returns the text with the
/// answers' byte ranges. If a mark is unpaired, returns the error message [`NO_BORDER`].
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
