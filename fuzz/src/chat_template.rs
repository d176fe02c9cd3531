//! Fuzzes chat templates: the input is a `chat_template.jinja`, by which two conversations are written.

use std::fs;

use stageline_data::{ChatVariables, Encode, Message, TokenError, TokenOptions, Tokenizer, prepare};

/// The largest length in bytes of a fuzz input. Longer inputs are skipped, because shorter ones reach the same code.
const LIMIT: usize = 4_096;

/// The limit in bytes on an error message about a template, which contains the template's path and message.
const LONGEST: usize = 1_500;

/// A tokenizer whose tokens are words.
const WORDS: &str = r#"{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2}}}"#;

/// Reads a fuzz input as the chat template of a tokenizer, writes conversations by it, and tokenises one. Asserts that
/// the same conversation gives the same text, that the answers are parts of it in order, and that errors are safe to
/// print.
pub fn chat_template(bytes: &[u8]) {
    if bytes.len() > LIMIT {
        return;
    }
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let root = root.expect("temporary folders can be made");
    fs::write(root.path().join("tokenizer.json"), WORDS).expect("files can be made");
    fs::write(root.path().join("chat_template.jinja"), bytes).expect("files can be made");
    let tokenizer = Tokenizer::in_folder(root.path()).expect("the tokenizer is valid").expect("there is one");
    let messages = [Message::new("user", "a b"), Message::new("assistant", "b"), Message::new("user", "a")];
    for (count, asks) in [(1, true), (2, false), (3, true)] {
        let first = tokenizer.chat(&messages[..count], &ChatVariables::default(), asks);
        let second = tokenizer.chat(&messages[..count], &ChatVariables::default(), asks);
        match (first, second) {
            (Ok(chat), Ok(again)) => {
                assert_eq!(chat, again, "a template is not random");
                let mut end = 0;
                for answer in &chat.answers {
                    assert!(end <= answer.start && answer.start < answer.end, "{:?}", chat.answers);
                    assert!(chat.text.get(answer.clone()).is_some(), "{:?} of {:?}", chat.answers, chat.text);
                    end = answer.end;
                }
            }
            (Err(first), Err(_)) => assert_shown(&first),
            (first, second) => panic!("{first:?} and {second:?}"),
        }
    }
    let path = root.path().join("a.jsonl");
    fs::write(&path, r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b b"}]}"#)
        .expect("files can be made");
    let options = TokenOptions { folder: Some(root.path().join("tokens")), ..TokenOptions::default() };
    match prepare(&path, &tokenizer, &options) {
        Ok(file) => assert!((0..file.len()).all(|position| file.has_prompts() || file.is_target(position))),
        Err(error) => assert_shown(&error),
    }
}

/// Asserts that the message of an error about a chat template is short and has no control characters.
fn assert_shown(error: &TokenError) {
    let text = error.to_string();
    assert!(text.len() < LONGEST, "{} bytes: {text}", text.len());
    assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text:?}");
}
