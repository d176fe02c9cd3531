//! Renders a conversation as text with its chat template, and locates the answers in this text. Only answers are
//! targets in the loss; the rest of the text is masked out.

use std::iter;
use std::ops::Range;

use crate::tokens::error::TokenError;
use crate::tokens::message::{Chat, MARK, Message};

/// Callback that renders messages as text with a chat template. If the boolean is true, the text ends with the
/// generation prompt (the start of an answer).
pub(crate) type Render<'a> = dyn Fn(&[Message], bool) -> Result<Chat, TokenError> + 'a;

/// Renders a conversation, and returns its text with the ranges of the text that are targets in the loss.
///
/// The ranges are those that the chat template marks by `{% generation %}`. If it marks none, they are the assistant's
/// messages, each including its end-of-turn text.
///
/// # Errors
/// - [`TokenError::LongDocument`] if the text is longer than 8 MiB.
/// - [`TokenError::NoAnswer`] if there is no target, because no message has the role `assistant`.
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

/// Returns the distinct roles of messages, separated by commas.
fn roles(messages: &[Message]) -> String {
    let mut roles = Vec::new();
    for message in messages {
        if !roles.contains(&message.role()) {
            roles.push(message.role());
        }
    }
    roles.join(", ")
}

/// Renders a prompt and a completion, both given as messages. Only the completion is a target in the loss: the text
/// from the start of its first message to the end.
///
/// # Errors
/// - [`TokenError::LongDocument`] if the text is longer than 8 MiB.
/// - [`TokenError::ChangedByLater`] if the start of the completion cannot be located.
/// - An error of `render`.
pub(crate) fn reply(prompt: &[Message], completion: &[Message], render: &Render) -> Result<Chat, TokenError> {
    let messages = [prompt, completion].concat();
    let text = render(&messages, false)?.text;
    check_length(&text)?;
    let start = Conversation { messages: &messages, whole: &text, render }.start(prompt.len())?;
    Ok(Chat { answers: iter::once(start..text.len()).collect(), text })
}

/// Maximum length, in bytes, of a document that is partly masked out in the loss; a longer one is an error. It is
/// tokenised in one pass, which takes over a hundred times as much host memory as its text.
const MOST: usize = 8 << 20;

/// Returns an error if the text of a conversation, or of a prompt with its completion, is longer than [`MOST`] bytes.
pub(crate) fn check_length(text: &str) -> Result<(), TokenError> {
    if text.len() > MOST { Err(TokenError::LongDocument { found: text.len(), most: MOST }) } else { Ok(()) }
}

/// Locates the start and end of messages in a rendered conversation (`whole`). A template may render a message
/// differently when it is the last one, so there are several ways to locate a message.
struct Conversation<'a> {
    messages: &'a [Message],
    whole: &'a str,
    render: &'a Render<'a>,
}

impl Conversation<'_> {
    /// Returns the byte offset where the message with the zero-based index `index` begins in the rendered conversation:
    ///
    /// - The first message begins at its content, or at 0 if its content is not found.
    /// - A later message begins where the text of the preceding messages ends. An answer begins after the generation
    ///   prompt, or after the part of the generation prompt that the text contains.
    /// - If the text does not begin with the text of the preceding messages, a message begins at its content.
    ///
    /// # Errors
    /// Returns [`TokenError::ChangedByLater`] if the last case applies and the content is not found, or an error of the
    /// chat template.
    fn start(&self, index: usize) -> Result<usize, TokenError> {
        let content = || self.content(index, self.messages.len()).map(|found| found.map(|(content, _)| content.start));
        if index == 0 {
            return Ok(content()?.unwrap_or(0)); // nothing is rendered, because a template may reject an empty conversation
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
            // The generation prompt may contain more than the text has here, for example the start of a reasoning
            // block.
            Some(content) if goes_on => Ok(shared(self.whole, &asking).max(before.len()).min(content)),
            None if goes_on => Ok(shared(self.whole, &asking).max(before.len())),
            content => content.ok_or(TokenError::ChangedByLater),
        }
    }

    /// Returns the byte offset where the message with the zero-based index `index`, which begins at `start`, ends in
    /// the rendered conversation. The whole text is compared with a shorter one, the rendering of the messages up to
    /// this one:
    ///
    /// - If the text begins with the shorter text, the message ends where the shorter text ends.
    /// - Otherwise, if the message's content is found in both texts, the message ends after its content and after the
    ///   text that follows the content in both.
    /// - Otherwise, the message is the longest suffix of the shorter text that occurs at `start` in the text.
    ///
    /// # Errors
    /// Returns [`TokenError::ChangedByLater`] if no suffix of the shorter text occurs at `start`, or an error of the
    /// chat template.
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

    /// Locates a message's content in the rendered text of the first `count` messages. Returns the content's byte
    /// range, and the text. Returns `None` if the content of the message `index` (zero-based) is not found exactly
    /// once, so that the caller locates the message in another way.
    fn content(&self, index: usize, count: usize) -> Result<Option<(Range<usize>, String)>, TokenError> {
        let Some(marked) = self.messages[index].marked() else { return Ok(None) };
        let messages = [&self.messages[..index], &[marked], &self.messages[index + 1..count]].concat();
        let text = (self.render)(&messages, false)?.text;
        let parts: Vec<&str> = text.split(MARK).collect();
        let [before, content, after] = parts[..] else { return Ok(None) };
        let place = before.len()..before.len() + content.len();
        let text = [before, content, after].concat();
        // A template may test or change the content, so the marks may have changed the rendered text.
        let is_same = text == (self.render)(&self.messages[..count], false)?.text;
        Ok(is_same.then_some((place, text)))
    }
}

/// Returns the length, in bytes, of the common prefix of two texts. Unless one text is a prefix of the other, the
/// common prefix is shortened, so that it divides no special token: it ends after its last `>`, `]`, `｜` (U+FF5C) or
/// line feed, and is empty without one of these.
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
