//! Takes a document from a line of a JSON-lines file, without reading the values of the fields that no document has.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::shown;
use crate::tokens::message::Message;

/// The largest number of fields of a JSON object that an error message names.
const FIELDS: usize = 8;

/// The names of the fields with a prompt, with its completion, and with a conversation.
const PROMPT: &str = "prompt";
const COMPLETION: &str = "completion";
const MESSAGES: &str = "messages";

/// A document as a line of a JSON-lines file has it.
#[derive(Debug)]
pub(crate) enum Document {
    /// A text, all of which is trained on.
    Text(String),
    /// The texts of a prompt and of its completion, which alone is trained on.
    Completion([String; 2]),
    /// The messages of a prompt and of its completion, which alone is trained on.
    Reply([Vec<Message>; 2]),
    /// A conversation, of which the answers are trained on.
    Conversation(Vec<Message>),
}

/// Reads the document in a line: the string in the field `text_field`, or else the conversation in `messages`, or else
/// `prompt` and `completion`. The values of other fields only have to be JSON, so numbers out of range and deep nesting
/// in them do no harm. The last of equal fields counts.
///
/// The inner error is the fault of a line that is JSON and no document, in words.
pub(crate) fn document(line: &[u8], text_field: &str) -> serde_json::Result<Result<Document, String>> {
    let line: &RawValue = serde_json::from_slice(line)?;
    if kind(line) != "an object" {
        return Ok(Err(format!("is {} and not an object", kind(line))));
    }
    let fields = Fields { text_field }.deserialize(&mut serde_json::Deserializer::from_str(line.get()))?;
    Ok(fields.document(text_field))
}

/// The fields of a line: the values of those that a document may have, as JSON, and the names of the first others.
#[derive(Default)]
struct Found<'a> {
    values: HashMap<String, &'a RawValue>,
    others: Vec<String>,
}

impl Found<'_> {
    fn document(&self, text_field: &str) -> Result<Document, String> {
        if let Some(text) = self.values.get(text_field) {
            return string(text, text_field).map(Document::Text);
        }
        if let Some(messages) = self.values.get(MESSAGES) {
            return self::messages(messages, MESSAGES).map(Document::Conversation);
        }
        let sides = match [PROMPT, COMPLETION].map(|name| self.values.get(name)) {
            [None, None] => return Err(self.without_document(text_field)),
            [Some(_), None] => return Err(format!("has a `{PROMPT}` and no `{COMPLETION}`")),
            [None, Some(_)] => return Err(format!("has a `{COMPLETION}` and no `{PROMPT}`")),
            [Some(prompt), Some(completion)] => [prompt, completion],
        };
        match sides.map(|side| kind(side)) {
            ["a string", "a string"] => {
                Ok(Document::Completion([string(sides[0], PROMPT)?, string(sides[1], COMPLETION)?]))
            }
            ["an array", "an array"] => {
                Ok(Document::Reply([self::messages(sides[0], PROMPT)?, self::messages(sides[1], COMPLETION)?]))
            }
            [prompt, completion] => Err(format!(
                "has {prompt} as `{PROMPT}` and {completion} as `{COMPLETION}`, and not two strings or two arrays"
            )),
        }
    }

    fn without_document(&self, text_field: &str) -> String {
        let wanted = format!("has no field `{}`, `{MESSAGES}` or `{PROMPT}`", shown::text(text_field));
        match self.others.is_empty() {
            true => format!("{wanted} and no other field"),
            false => format!("{wanted}, but has the fields {}", shown::text(&self.others.join(", "))),
        }
    }
}

/// Reads the [`Found`] fields of a JSON object.
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
            if [self.text_field, MESSAGES, PROMPT, COMPLETION].contains(&name.as_str()) {
                found.values.insert(name, value);
            } else if found.others.len() < FIELDS {
                found.others.push(name);
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
    if messages.is_empty() { Err(format!("has no message in the field `{field}`")) } else { Ok(messages) }
}

/// Returns the kind of a JSON value in words.
fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes()[0] {
        b'"' => "a string",
        b'{' => "an object",
        b'[' => "an array",
        b't' | b'f' => "a boolean",
        b'n' => "null",
        _ => "a number",
    }
}
