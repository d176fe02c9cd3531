//! Divides a document into the parts that are trained on and those that are only read: [`Part`].

use std::iter::once;
use std::ops::Range;

use crate::tokens::error::TokenError;
use crate::tokens::message::{Chat, Message};

/// A part of a document that is either trained on or only read, such as a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) text: String,
    /// Whether the tokens of the part are targets of a training.
    pub(crate) is_target: bool,
}

/// Renders a conversation: the messages, and whether the text ends with the beginning of an answer.
pub(crate) type Render<'a> = dyn Fn(&[Message], bool) -> Result<Chat, TokenError> + 'a;

/// Divides a conversation into the answers, which are trained on, and the parts between them, which are not.
///
/// The answers are those parts that the template marks. If it marks none, they are the messages of the assistant: the
/// text of the messages before an answer, with the beginning of an answer, must be the start of the whole text, and so
/// must be the text up to the end of the answer. If the first message is an answer, it begins at the start of the text.
///
/// # Errors
/// Returns an error of `render`, or [`TokenError::ChangedByLater`] if the template writes a message in another way
/// when more messages follow.
pub(crate) fn parts_of_conversation(messages: &[Message], render: &Render) -> Result<Vec<Part>, TokenError> {
    let whole = render(messages, false)?;
    let mut borders = whole.answers.clone();
    if borders.is_empty() {
        for (index, _) in messages.iter().enumerate().filter(|(_, message)| message.is_answer()) {
            let before = beginning(&whole.text, &messages[..index], true, render)?;
            let through = beginning(&whole.text, &messages[..=index], false, render)?;
            borders.push(before..through);
        }
    }
    Ok(divided(&whole.text, borders))
}

/// Divides the conversation of a prompt and a completion, which both are messages: only the completion is trained on.
///
/// # Errors
/// As [`parts_of_conversation`].
pub(crate) fn parts_of_completion(
    prompt: &[Message],
    completion: &[Message],
    render: &Render,
) -> Result<Vec<Part>, TokenError> {
    let whole = render(&[prompt, completion].concat(), false)?.text;
    let asks = completion.first().is_some_and(Message::is_answer);
    let border = beginning(&whole, prompt, asks, render)?;
    Ok(divided(&whole, once(border..whole.len())))
}

/// Returns the length of the text of the first messages of a conversation, which must be the start of its `whole` text.
fn beginning(whole: &str, messages: &[Message], asks: bool, render: &Render) -> Result<usize, TokenError> {
    if messages.is_empty() {
        return Ok(0); // a template may refuse a conversation without messages
    }
    let text = render(messages, asks)?.text;
    match whole.starts_with(&text) {
        true => Ok(text.len()),
        false => Err(TokenError::ChangedByLater { messages: messages.len() }),
    }
}

/// Divides a text at the borders of its answers. Empty parts are left out.
fn divided(text: &str, answers: impl IntoIterator<Item = Range<usize>>) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut end = 0;
    for answer in answers.into_iter().chain(once(text.len()..text.len())) {
        // The beginning of an answer may be a part of the text of the message before it.
        let start = answer.start.max(end);
        parts.push(Part { text: text[end..start].into(), is_target: false });
        end = answer.end.max(start);
        parts.push(Part { text: text[start..end].into(), is_target: true });
    }
    parts.retain(|part| !part.text.is_empty());
    parts
}
