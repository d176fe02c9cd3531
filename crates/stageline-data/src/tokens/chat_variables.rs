//! The inputs of a chat template besides the messages of a conversation: [`ChatVariables`].

use std::borrow::Cow;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::shown;
use crate::tokens::json_object::{Fields, kind};

/// The names of the JSON fields that contain the tool definitions (`TOOLS`) and the other chat template variables
/// (`VARIABLES`).
pub(crate) const TOOLS: &str = "tools";
pub(crate) const VARIABLES: &str = "chat_template_kwargs";

/// The variable names that `chat_template_kwargs` may not set. `messages` and `tools` have JSON fields of their own.
/// The others are arguments of transformers' `apply_chat_template`, not template variables.
const RESERVED: [&str; 15] = [
    "messages",
    "conversation",
    "tools",
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "tokenize",
    "sanitize_control_tokens",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
];

/// The inputs of a chat template besides the messages: the definitions of the tools that a model may call, and
/// variables of any name, such as `enable_thinking`.
///
/// The type is deserialised from a JSON object with the optional fields `tools` and `chat_template_kwargs`, such as a
/// line of a JSON-lines file. `tools` is a list of objects, or a string that contains such a list as JSON; an empty
/// list counts as none. `chat_template_kwargs` is an object. As in transformers, its fields replace special tokens of
/// the same name, but not the messages or the tools.
#[derive(Clone, Debug, Default)]
pub struct ChatVariables {
    tools: Option<Box<RawValue>>,
    others: Vec<(String, Box<RawValue>)>,
}

impl ChatVariables {
    /// Returns the tool definitions as a JSON list, with the fields of each object in the original order; `None` if
    /// there are no tools.
    pub fn tools(&self) -> Option<&str> {
        self.tools.as_deref().map(RawValue::get)
    }

    /// Returns the names of all template variables except the tools, and their values as JSON, in the original order.
    pub fn others(&self) -> impl Iterator<Item = (&str, &str)> {
        self.others.iter().map(|(name, value)| (name.as_str(), value.get()))
    }

    /// Whether there are neither tools nor other template variables.
    pub fn is_empty(&self) -> bool {
        self.tools.is_none() && self.others.is_empty()
    }

    /// Parses the template variables from the values of the fields `tools` and `chat_template_kwargs`. The error is a
    /// message that says what is wrong with a field, and is safe to print.
    pub(crate) fn of_fields(tools: Option<&RawValue>, variables: Option<&RawValue>) -> Result<Self, String> {
        let tools = tools.map_or(Ok(None), self::tools)?;
        Ok(Self { tools, others: variables.map_or(Ok(Vec::new()), others)? })
    }

    /// Returns the length, in bytes, of the tool definitions as JSON and of all other chat template variables with
    /// their names. The length counts towards a batch's size limit.
    pub(crate) fn length(&self) -> usize {
        let others = self.others().map(|(name, json)| name.len() + json.len());
        self.tools().map_or(0, str::len) + others.sum::<usize>()
    }
}

/// Parses the JSON field `tools`: a list of tool definitions, or a string that contains such a list as JSON. Returns
/// `None` if the list is empty. The error is a message that says what is wrong.
fn tools(field: &RawValue) -> Result<Option<Box<RawValue>>, String> {
    let is_no_json =
        |error: serde_json::Error| format!("has no JSON in the field `{TOOLS}`: {}", shown::text(&error.to_string()));
    let list = match kind(field) {
        "a string" => {
            let json: String = serde_json::from_str(field.get()).map_err(is_no_json)?;
            let json = if json.trim().is_empty() { "null" } else { &json };
            Cow::Owned(RawValue::from_string(json.into()).map_err(is_no_json)?)
        }
        _ => Cow::Borrowed(field),
    };
    match kind(&list) {
        "null" => return Ok(None),
        "an array" => {}
        other => return Err(format!("has {other} in the field `{TOOLS}` and not an array of objects")),
    }
    let tools: Vec<&RawValue> = serde_json::from_str(list.get()).map_err(is_no_json)?;
    match tools.iter().find(|tool| kind(tool) != "an object") {
        Some(other) => Err(format!("has {} in the array `{TOOLS}` and not an object", kind(other))),
        None => Ok((!tools.is_empty()).then(|| list.into_owned())),
    }
}

/// Parses the JSON field `chat_template_kwargs` into the name and JSON value of each chat template variable. The error
/// is a message that says what is wrong.
fn others(field: &RawValue) -> Result<Vec<(String, Box<RawValue>)>, String> {
    if kind(field) != "an object" {
        return Err(format!("has {} in the field `{VARIABLES}` and not an object", kind(field)));
    }
    let Fields(fields) = serde_json::from_str(field.get())
        .map_err(|error| format!("has no variables in the field `{VARIABLES}`: {}", shown::text(&error.to_string())))?;
    match fields.iter().find(|(name, _)| RESERVED.contains(&name.as_str())) {
        Some((name, _)) => Err(format!("has `{name}` in the field `{VARIABLES}`, which cannot set it")),
        None => Ok(fields.into_iter().map(|(name, value)| (name, value.to_owned())).collect()),
    }
}

impl<'de> Deserialize<'de> for ChatVariables {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        let Fields(fields) = serde_json::from_str(json.get()).map_err(Error::custom)?;
        let value = |name: &str| {
            let field = fields.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
            field.filter(|value| kind(value) != "null")
        };
        Self::of_fields(value(TOOLS), value(VARIABLES)).map_err(Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<ChatVariables, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn tools_are_a_list_or_a_string_with_a_list_and_keep_their_order() {
        let list = r#"[{"name": "b", "a": 1.50}, {}]"#;
        let text = serde_json::to_string(list).unwrap();
        for json in [list, &text] {
            assert_eq!(read(&format!("{{\"tools\": {json}}}")).unwrap().tools(), Some(list));
        }
        for none in ["null", "[]", "\"[ ]\"", "\"null\"", "\"\"", "\" \""] {
            let variables = read(&format!("{{\"tools\": {none}, \"chat_template_kwargs\": {{}}}}")).unwrap();
            assert!(variables.is_empty() && variables.tools().is_none(), "{none}");
        }
        let fault = |json: &str| read(&format!("{{\"tools\": {json}}}")).unwrap_err();
        assert_eq!(fault("{}"), "has an object in the field `tools` and not an array of objects");
        assert_eq!(fault("\"1\""), "has a number in the field `tools` and not an array of objects");
        assert_eq!(fault("[{}, \"add\"]"), "has a string in the array `tools` and not an object");
        assert!(fault("\"[{\"").starts_with("has no JSON in the field `tools`: EOF while parsing"));
    }

    #[test]
    fn variables_have_any_name_but_those_of_the_messages_and_of_settings() {
        let variables = read(r#"{"chat_template_kwargs": {"b": false, "a": [1], "b": null}}"#).unwrap();
        assert_eq!(variables.others().collect::<Vec<_>>(), [("b", "null"), ("a", "[1]")]);
        assert!(!variables.is_empty() && read("{}").unwrap().is_empty());
        let fault = |json: &str| read(&format!("{{\"chat_template_kwargs\": {json}}}")).unwrap_err();
        for name in ["messages", "tools", "add_generation_prompt", "tokenize"] {
            let expected = format!("has `{name}` in the field `chat_template_kwargs`, which cannot set it");
            assert_eq!(fault(&format!("{{\"{name}\": []}}")), expected);
        }
        assert_eq!(fault("[]"), "has an array in the field `chat_template_kwargs` and not an object");
    }
}
