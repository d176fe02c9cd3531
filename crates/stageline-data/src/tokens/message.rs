//! A message of a conversation as input for a chat template ([`Message`]), and a rendered conversation ([`Chat`]).

use std::ops::Range;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::tokens::json_object::Fields;

/// A message of a conversation: a JSON object with a `role`, such as `user` or `assistant`, and usually its `content`.
/// A chat template may read other fields too, such as `tool_calls`.
#[derive(Clone, Debug)]
pub struct Message {
    role: String,
    /// The whole message as JSON. The order of its fields is kept, because a chat template may print them.
    json: Box<RawValue>,
}

/// The role of the messages that a model is trained to generate.
const ASSISTANT: &str = "assistant";

impl Message {
    /// Creates a message with the text `content` from the given role.
    pub fn new(role: &str, content: &str) -> Self {
        #[derive(Serialize)]
        struct New<'a> {
            role: &'a str,
            content: &'a str,
        }
        let json = to_raw_value(&New { role, content }).expect("two strings are JSON");
        Self { role: role.into(), json }
    }

    /// Returns the role of the message's author, such as `user` or `assistant`.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Returns the whole message as a JSON string, with its fields in the original order.
    pub fn json(&self) -> &str {
        self.json.get()
    }

    /// Whether the message is an answer, which a model is trained to generate: a message with the role `assistant`.
    pub(crate) fn is_answer(&self) -> bool {
        self.role == ASSISTANT
    }

    /// Returns a copy of the message with a [`MARK`] at both ends of its content, inside leading and trailing
    /// whitespace, so that the content can be located in the rendered conversation. Returns `None` if the content is
    /// not a string.
    pub(crate) fn marked(&self) -> Option<Self> {
        let Fields(fields) = serde_json::from_str(self.json()).ok()?;
        let (_, content) = fields.iter().find(|(name, _)| name == CONTENT)?;
        let content: String = serde_json::from_str(content.get()).ok()?;
        let text = content.trim();
        let before = content.len() - content.trim_start().len();
        let content = format!("{}{MARK}{text}{MARK}{}", &content[..before], &content[before + text.len()..]);
        let content = to_raw_value(&content).ok()?;
        let field = |(name, value): &(String, &RawValue)| {
            let value = if name == CONTENT { content.get() } else { value.get() };
            Some(format!("{}:{value}", serde_json::to_string(name).ok()?))
        };
        let fields = fields.iter().map(field).collect::<Option<Vec<_>>>()?;
        let json = RawValue::from_string(format!("{{{}}}", fields.join(","))).ok()?;
        Some(Self { role: self.role.clone(), json })
    }
}

/// The name of the message field that contains the message's text.
const CONTENT: &str = "content";

/// The character that marks both ends of a message's content, so that the content can be located in the rendered
/// conversation. It is a Unicode noncharacter, which does not occur in normal text.
pub(crate) const MARK: char = '\u{fdd2}';

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        let Fields(fields) = serde_json::from_str(json.get()).map_err(Error::custom)?;
        let role = fields.iter().find(|(name, _)| name == "role").ok_or_else(|| Error::missing_field("role"))?;
        let role = serde_json::from_str(role.1.get()).map_err(|_| Error::custom("the field `role` is no string"))?;
        Ok(Self { role, json })
    }
}

/// A conversation that was rendered as the text that a model reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chat {
    /// The text of all messages, including the special tokens of the chat template.
    pub text: String,
    /// The parts of the text that a model is trained to generate, as byte ranges in ascending order. They are known
    /// only if the chat template marks them by `{% generation %}`; otherwise the list is empty.
    pub answers: Vec<Range<usize>>,
}
