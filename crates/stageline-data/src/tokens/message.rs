//! A message of a conversation, as chat templates read it ([`Message`]), and a whole conversation as text ([`Chat`]).

use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// A message of a conversation: a JSON object with a `role`, such as `user` or `assistant`, and usually its `content`.
/// A chat template may read other fields too, such as `tool_calls`.
#[derive(Clone, Debug)]
pub struct Message {
    role: String,
    /// The whole message as JSON. The order of its fields is kept, because a template may print them.
    json: Box<RawValue>,
}

/// The role of the messages that a model is trained to write.
const ASSISTANT: &str = "assistant";

impl Message {
    /// Creates a message with the text `content` from the given role.
    pub fn new(role: &str, content: &str) -> Self {
        #[derive(Serialize)]
        struct Fields<'a> {
            role: &'a str,
            content: &'a str,
        }
        let json = to_raw_value(&Fields { role, content }).expect("two strings are JSON");
        Self { role: role.into(), json }
    }

    /// Returns the role of the message's author, such as `user`.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Returns the whole message as JSON.
    pub fn json(&self) -> &str {
        self.json.get()
    }

    /// Whether the message is one that a model is trained to write.
    pub(crate) fn is_answer(&self) -> bool {
        self.role == ASSISTANT
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Role {
            role: String,
        }
        let json = Box::<RawValue>::deserialize(from)?;
        let Role { role } = serde_json::from_str(json.get()).map_err(serde::de::Error::custom)?;
        Ok(Self { role, json })
    }
}

/// A conversation as the text that a model reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chat {
    /// The text of all messages, with the special tokens of the chat template.
    pub text: String,
    /// The parts of the text that a model is trained to write, as ranges of bytes in ascending order. They are known
    /// only if the template marks them by `{% generation %}`; otherwise the list is empty.
    pub answers: Vec<Range<usize>>,
}
