//! Renders a conversation as text with its chat template, and finds the answers in this text. A model is trained to
//! write the answers only; the rest of the text is input.

use std::iter;
use std::ops::Range;

use crate::tokens::error::TokenError;
use crate::tokens::message::{Chat, MARK, Message};

/// A function that renders messages as text with a chat template. If the boolean is true, the text ends with the
/// generation prompt (the beginning of an answer).
pub(crate) type Render<'a> = dyn Fn(&[Message], bool) -> Result<Chat, TokenError> + 'a;

/// Renders a conversation, and returns its text and the ranges of the text to train on.
///
/// The ranges are what the template marks by `{% generation %}`. If it marks nothing, they are the assistant's
/// messages, each with its end-of-turn text.
///
/// # Errors
/// - [`TokenError::LongDocument`] if the text is longer than 8 MiB.
/// - [`TokenError::NoAnswer`] if there is nothing to train on, because no message is the assistant's.
/// - [`TokenError::ChangedByLater`] if an answer cannot be located.
/// - An error of `render`.
pub(crate) fn conversation(messages: &[Message], render: &Render) -> Result<Chat, TokenError> {
    let mut chat = render(messages, false)?;
    check_length(&chat.text)?;
    if chat.answers.is_empty() {
        if !messages.iter().any(Message::is_answer) {
            return Err(TokenError::NoAnswer { roles: roles(messages) });
        }
        let conversation = Conversation { messages, whole: &chat.text, render };
        let of_assistant = messages.iter().enumerate().filter(|(_, message)| message.is_answer());
        let places = of_assistant.map(|(index, _)| {
            let start = conversation.start(index)?;
            Ok(start..conversation.end(index, start)?.max(start))
        });
        chat.answers = places.collect::<Result<_, TokenError>>()?;
    }
    Ok(chat)
}

/// Returns the roles of messages, each once, with commas between them.
fn roles(messages: &[Message]) -> String {
    let mut roles = Vec::new();
    for message in messages {
        if !roles.contains(&message.role()) {
            roles.push(message.role());
        }
    }
    roles.join(", ")
}

/// Renders a prompt and a completion, both given as messages. Only the completion is trained on: the text from the
/// beginning of its first message to the end.
///
/// # Errors
/// - [`TokenError::LongDocument`] if the text is longer than 8 MiB.
/// - [`TokenError::ChangedByLater`] if the beginning of the completion cannot be located.
/// - An error of `render`.
pub(crate) fn reply(prompt: &[Message], completion: &[Message], render: &Render) -> Result<Chat, TokenError> {
    let messages = [prompt, completion].concat();
    let text = render(&messages, false)?.text;
    check_length(&text)?;
    let start = Conversation { messages: &messages, whole: &text, render }.start(prompt.len())?;
    Ok(Chat { answers: iter::once(start..text.len()).collect(), text })
}

/// The maximum length in bytes of a document that is only partly trained on. Such a document is tokenised in one pass,
/// which takes over a hundred times as much memory as its text.
const MOST: usize = 8 << 20;

/// Returns an error if the text of a document with a prompt or of a conversation is longer than allowed.
pub(crate) fn check_length(text: &str) -> Result<(), TokenError> {
    if text.len() > MOST { Err(TokenError::LongDocument { found: text.len(), most: MOST }) } else { Ok(()) }
}

/// A conversation and its rendered text, in which the beginnings and ends of messages are located. A template may
/// render a message differently when it is the last, so there are several ways to locate a message.
struct Conversation<'a> {
    messages: &'a [Message],
    whole: &'a str,
    render: &'a Render<'a>,
}

impl Conversation<'_> {
    /// Returns the offset in bytes at which a message begins in the text of the conversation:
    ///
    /// - The first message begins at its content, or at 0 if its content is not found.
    /// - A later message begins where the text of the messages before it ends. An answer begins after the generation
    ///   prompt, or after as much of the generation prompt as the text contains.
    /// - If the text does not begin with the text of the messages before it, a message begins at its content.
    ///
    /// # Errors
    /// Returns [`TokenError::ChangedByLater`] if the last case applies and the content is not found, or an error of
    /// rendering.
    fn start(&self, index: usize) -> Result<usize, TokenError> {
        let content = || self.content(index, self.messages.len()).map(|found| found.map(|(content, _)| content.start));
        if index == 0 {
            return Ok(content()?.unwrap_or(0)); // a template may refuse a conversation without messages
        }
        let before = (self.render)(&self.messages[..index], false)?.text;
        let goes_on = self.whole.starts_with(&before);
        if !self.messages[index].is_answer() {
            return if goes_on { Ok(before.len()) } else { content()?.ok_or(TokenError::ChangedByLater) };
        }
        let asking = (self.render)(&self.messages[..index], true)?.text;
        if self.whole.starts_with(&asking) {
            return Ok(asking.len());
        }
        match content()? {
            // The generation prompt may go beyond the text at this place, for example with the beginning of thoughts.
            Some(content) if goes_on => Ok(shared(self.whole, &asking).max(before.len()).min(content)),
            None if goes_on => Ok(shared(self.whole, &asking).max(before.len())),
            content => content.ok_or(TokenError::ChangedByLater),
        }
    }

    /// Returns the offset in bytes at which a message ends in the text of the conversation. The message begins at
    /// `start`. The text is compared with a shorter text, the rendering of the messages up to this one:
    ///
    /// - If the text begins with the shorter text, the message ends where the shorter text ends.
    /// - Otherwise, if the content of the message is found in both texts, the message ends after its content and after
    ///   the text that follows it in both.
    /// - Otherwise, the message is the longest suffix of the shorter text that is at `start` in the text.
    ///
    /// # Errors
    /// Returns [`TokenError::ChangedByLater`] if no suffix of the shorter text is at `start`, or an error of rendering.
    fn end(&self, index: usize, start: usize) -> Result<usize, TokenError> {
        let through = (self.render)(&self.messages[..=index], false)?.text;
        if self.whole.starts_with(&through) {
            return Ok(through.len());
        }
        let here = self.content(index, self.messages.len())?;
        let last = self.content(index, index + 1)?;
        if let (Some((here, _)), Some((last, through))) = (here, last) {
            return Ok(here.end + shared(&self.whole[here.end..], &through[last.end..]));
        }
        let rest = &self.whole[start..];
        let mut ends = through.char_indices().map(|(at, _)| &through[at..]);
        ends.find(|end| rest.starts_with(end)).map(|end| start + end.len()).ok_or(TokenError::ChangedByLater)
    }

    /// Renders the first `count` messages. Returns the range, in bytes, of a message's content in this text, and the
    /// text. Returns `None` if the content is not found exactly once, so that the caller must locate the message in
    /// another way.
    fn content(&self, index: usize, count: usize) -> Result<Option<(Range<usize>, String)>, TokenError> {
        let Some(marked) = self.messages[index].marked() else { return Ok(None) };
        let messages = [&self.messages[..index], &[marked], &self.messages[index + 1..count]].concat();
        let text = (self.render)(&messages, false)?.text;
        let parts: Vec<&str> = text.split(MARK).collect();
        let [before, content, after] = parts[..] else { return Ok(None) };
        let place = before.len()..before.len() + content.len();
        let text = [before, content, after].concat();
        // A template may test or change the content, so the marks may have changed the text.
        let is_same = text == (self.render)(&self.messages[..count], false)?.text;
        Ok(is_same.then_some((place, text)))
    }
}

/// Returns the length in bytes of the common prefix of two texts. If neither text is a prefix of the other, the common
/// prefix is cut after its last special token or line feed. So no special token is divided.
fn shared(one: &str, other: &str) -> usize {
    let same = one.chars().zip(other.chars()).take_while(|(one, other)| one == other);
    let length = same.map(|(letter, _)| letter.len_utf8()).sum();
    if length == one.len() || length == other.len() {
        return length;
    }
    one[..length]
        .rfind(['>', ']', '\n', '\u{ff5c}'])
        .map_or(0, |at| at + one[at..].chars().next().map_or(0, char::len_utf8))
}
