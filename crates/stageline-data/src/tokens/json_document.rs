//! Parses the document in a line of a JSON-lines file. Skips the values of fields that do not belong to a document.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::shown;
use crate::tokens::chat_variables::{ChatVariables, TOOLS, VARIABLES};
use crate::tokens::json_object::kind;
use crate::tokens::message::Message;
use crate::tokens::other_formats;

/// Maximum number of a line's JSON field names that an error message lists; further names are left out.
const FIELDS: usize = 8;

/// The names of the JSON fields that contain a prompt (`PROMPT`), its completion (`COMPLETION`) and a conversation
/// (`MESSAGES`).
const PROMPT: &str = "prompt";
const COMPLETION: &str = "completion";
const MESSAGES: &str = "messages";

/// Maximum number of messages in a conversation; more are an error. A conversation may be rendered several times for
/// each message, so the limit bounds the tokenisation time.
const MOST_MESSAGES: usize = 1000;

/// A document that was read from a line of a JSON-lines file.
#[derive(Debug)]
pub(crate) enum Document {
    /// A text. All of its tokens are targets in the loss.
    Text(String),
    /// A prompt and its completion, both as strings. Only the completion is a target in the loss.
    Completion([String; 2]),
    /// A prompt and its completion, both as lists of messages. Only the completion is a target in the loss.
    Reply([Vec<Message>; 2], ChatVariables),
    /// A conversation. Only its answers are targets in the loss: the parts that the chat template marks by
    /// `{% generation %}`, or else the assistant's messages.
    Conversation(Vec<Message>, ChatVariables),
}

impl Document {
    /// Returns the length of a document in bytes, which limits the size of a batch. Messages and chat template
    /// variables count with their length as JSON.
    pub(crate) fn length(&self) -> usize {
        let of = |messages: &[Message]| messages.iter().map(|message| message.json().len()).sum::<usize>();
        match self {
            Self::Text(text) => text.len(),
            Self::Completion([prompt, completion]) => prompt.len() + completion.len(),
            Self::Reply([prompt, completion], variables) => of(prompt) + of(completion) + variables.length(),
            Self::Conversation(messages, variables) => of(messages) + variables.length(),
        }
    }
}

/// Parses the document in a line: the string in the field `text_field`, the conversation in `messages`, or `prompt` and
/// `completion`. A conversation may have `tools` and `chat_template_kwargs` for its chat template. Other fields need
/// only be valid JSON, so out-of-range numbers and deep nesting in them do no harm. If a field occurs twice, the last
/// one is used. A null field counts as missing.
///
/// The outer error means that the line is not valid JSON. The inner error is a message that says why the JSON is not a
/// valid document, and how to fix it.
pub(crate) fn document(line: &[u8], text_field: &str) -> serde_json::Result<Result<Document, String>> {
    if !line.trim_ascii_start().starts_with(b"{") {
        let other = kind(serde_json::from_slice(line)?);
        return Ok(Err(format!("is {other} and not an object; correct the line")));
    }
    let mut json = serde_json::Deserializer::from_slice(line);
    let fields = Fields { text_field }.deserialize(&mut json)?;
    json.end()?;
    Ok(fields.document(text_field))
}

/// The fields of one JSON line, to make a document or an error message. `values` maps the names of document fields, and
/// of fields that identify other dataset formats, to their JSON. `others` has the names of null fields and of the first
/// few other fields.
#[derive(Default)]
struct Found<'a> {
    values: HashMap<String, &'a RawValue>,
    others: Vec<String>,
    /// Name of the unknown field with the longest string, and the string's length as JSON. An error message suggests
    /// that this field contains the text.
    longest: Option<(String, usize)>,
}

impl Found<'_> {
    fn document(&self, text_field: &str) -> Result<Document, String> {
        let value = |name: &str| self.values.get(name).copied();
        let (text, messages) = (value(text_field), value(MESSAGES));
        let found = match (text, messages, value(PROMPT), value(COMPLETION)) {
            (Some(text), None, _, None) => string(text, text_field).map(Document::Text),
            // A prompt beside the messages is ignored, because some datasets repeat the first message as a prompt.
            (None, Some(messages), _, None) => self.conversation(messages),
            (None, None, Some(prompt), Some(completion)) => self.completion(prompt, completion),
            (None, None, Some(_), None) => Err(format!("has a `{PROMPT}` and no `{COMPLETION}`")),
            (None, None, None, Some(_)) => Err(format!("has a `{COMPLETION}` and no `{PROMPT}`")),
            (None, None, None, None) => return Err(self.without_document(text_field)),
            _ => {
                let names = [text_field, MESSAGES, PROMPT, COMPLETION];
                let names = names.into_iter().filter(|name| self.values.contains_key(*name));
                let names = names.map(|name| format!("`{}`", shown::text(name))).collect::<Vec<_>>();
                Err(format!("has several documents: {}", names.join(", ")))
            }
        };
        found.map_err(|fault| fault + "; correct the line")
    }

    fn conversation(&self, messages: &RawValue) -> Result<Document, String> {
        Ok(Document::Conversation(self::messages(messages, MESSAGES)?, self.variables()?))
    }

    fn completion(&self, prompt: &RawValue, completion: &RawValue) -> Result<Document, String> {
        match [prompt, completion].map(kind) {
            ["a string", "a string"] => {
                Ok(Document::Completion([string(prompt, PROMPT)?, string(completion, COMPLETION)?]))
            }
            ["an array", "an array"] => {
                let messages = [messages(prompt, PROMPT)?, messages(completion, COMPLETION)?];
                Ok(Document::Reply(messages, self.variables()?))
            }
            [prompt, completion] => Err(format!(
                "has {prompt} as `{PROMPT}` and {completion} as `{COMPLETION}`, and not two strings or two arrays"
            )),
        }
    }

    fn variables(&self) -> Result<ChatVariables, String> {
        let value = |name: &str| self.values.get(name).copied();
        ChatVariables::of_fields(value(TOOLS), value(VARIABLES))
    }

    /// Returns the error message for a JSON line without a document: what is wrong, and how to correct it.
    fn without_document(&self, text_field: &str) -> String {
        let value = |name: &str| self.values.get(name).copied();
        if let Some(fault) = other_formats::fault(&value) {
            return fault;
        }
        let text_field = shown::text(text_field);
        let wanted = format!("has no field `{text_field}`, `{MESSAGES}` or `{PROMPT}`");
        let others = match self.others.is_empty() {
            true => " and no other field".into(),
            false => format!(", but has the fields {}", shown::text(&self.others.join(", "))),
        };
        let rename = match &self.longest {
            Some((name, _)) => {
                format!(", or rename the field with the text, such as `{}`, to `{text_field}`", shown::text(name))
            }
            None => String::new(),
        };
        format!("{wanted}{others}; correct the line{rename}")
    }
}

/// A serde visitor that collects the fields of a line's JSON object in [`Found`]. `text_field` is the name of the field
/// that contains a document's text.
struct Fields<'a> {
    text_field: &'a str,
}

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = Found<'de>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Found<'de>, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Found<'de>, A::Error> {
        let mut found = Found::default();
        while let Some((name, value)) = object.next_entry::<String, &RawValue>()? {
            if [self.text_field, MESSAGES, PROMPT, COMPLETION, TOOLS, VARIABLES].contains(&name.as_str()) {
                found.values.remove(&name);
                match value.get() {
                    "null" => found.others.push(format!("{name} (null)")),
                    _ => drop(found.values.insert(name, value)),
                }
                continue;
            }
            if kind(value) == "a string" && found.longest.as_ref().is_none_or(|(_, most)| value.get().len() > *most) {
                found.longest = Some((name.clone(), value.get().len()));
            }
            if found.others.len() < FIELDS {
                found.others.push(name.clone());
            }
            if other_formats::FIELDS.contains(&name.as_str()) {
                found.values.insert(name, value);
            }
        }
        Ok(found)
    }
}

fn string(value: &RawValue, field: &str) -> Result<String, String> {
    let field = shown::text(field);
    match kind(value) {
        "a string" => serde_json::from_str(value.get())
            .map_err(|error| format!("has no text in the field `{field}`: {}", shown::text(&error.to_string()))),
        other => Err(format!("has {other} in the field `{field}` and not a string")),
    }
}

fn messages(value: &RawValue, field: &str) -> Result<Vec<Message>, String> {
    if kind(value) != "an array" {
        return Err(format!("has {} in the field `{field}` and not an array", kind(value)));
    }
    let messages: Vec<Message> = serde_json::from_str(value.get())
        .map_err(|error| format!("has no messages in the field `{field}`: {}", shown::text(&error.to_string())))?;
    match messages.len() {
        0 => Err(format!("has no message in the field `{field}`")),
        1..=MOST_MESSAGES => Ok(messages),
        count => Err(format!("has {count} messages in the field `{field}`, and may have {MOST_MESSAGES}")),
    }
}
