//! Tests which tokens are targets in the loss: completions and answers, and not the prompts before them.

use std::error::Error;
use std::fs;
use std::ops::Range;

use stageline_data::{Bytes, Chat, ChatVariables, Encode, Message, TokenError, TokenFile, prepare};

use crate::{Room, documents, reopen};

/// Returns the text of each document in a token file whose tokens are bytes. Brackets enclose the tokens that are
/// masked out in the loss.
fn marked(file: &TokenFile) -> Vec<String> {
    let show = |index| {
        let range = file.document(index);
        let mut tokens = vec![0; (range.end - range.start) as usize];
        file.read(range.start, &mut tokens).unwrap();
        let mut shown = String::new();
        let mut was_target = true;
        for (position, token) in range.zip(tokens) {
            let is_target = file.is_target(position);
            shown += match (was_target, is_target) {
                (true, false) => "[",
                (false, true) => "]",
                _ => "",
            };
            shown += &Bytes.decode(&[token]).unwrap();
            was_target = is_target;
        }
        shown + if was_target { "" } else { "]" }
    };
    (0..file.documents()).map(show).collect()
}

#[test]
fn completions_are_trained_on_and_prompts_are_not() {
    let lines = r#"{"prompt": "2 + 2 = ", "completion": "4", "source": "a book"}
        {"completion": "b", "prompt": "a"}
        {"text": "all of it"}
        {"prompt": "", "completion": "no prompt"}
        {"prompt": "no completion", "completion": ""}
        {"prompt": "", "completion": ""}
        {"prompt": "c", "completion": "d", "text": null, "messages": null, "tools": null}"#;
    let mut room = Room::with("a.jsonl", lines);
    let expected = ["[2 + 2 = ]4", "[a]b", "all of it", "no prompt", "[no completion]", "[c]d"];
    let file = room.prepare().unwrap();
    assert_eq!(marked(&file), expected);
    assert!(file.has_prompts());
    assert_eq!(marked(&reopen(&file)), expected);
    let everything = reopen(&file).training_on_prompts();
    assert_eq!(marked(&everything), expected.map(|text| text.replace(['[', ']'], "")));
    assert!(everything.has_prompts() && (0..everything.len()).all(|position| everything.is_target(position)));
    // Training on prompts does not turn prompts into plain text. Of these four documents, the first two have prompts.
    for file in [&file, &everything] {
        let is_plain_text: Vec<_> = (0..4).map(|index| file.is_plain_text(file.document(index))).collect();
        assert_eq!(is_plain_text, [false, false, true, true]);
    }
    assert_ne!(everything.fingerprint(), file.fingerprint(), "other tokens are trained on");
    room.options.end_of_document = Some(u32::from(b'.'));
    let expected = ["[2 + 2 = ]4.", "[a]b.", "all of it.", "no prompt.", "[no completion].", "[c]d."];
    assert_eq!(marked(&room.prepare().unwrap()), expected);
    let texts = Room::with("a.jsonl", "{\"text\": \"a\"}\n").prepare().unwrap();
    assert!(!texts.has_prompts() && texts.is_target(0));
    let fingerprint = texts.fingerprint();
    assert_eq!(texts.training_on_prompts().fingerprint(), fingerprint);
}

#[test]
fn other_prompts_are_other_data() {
    let of = |prompt: &str, completion: &str| {
        let line = format!("{{\"prompt\": \"{prompt}\", \"completion\": \"{completion}\"}}");
        Room::with("a.jsonl", line).prepare().unwrap().fingerprint()
    };
    assert_ne!(of("ab", "c"), of("a", "bc"));
    assert_eq!(of("ab", "c"), of("ab", "c"));
}

#[test]
fn a_line_without_a_whole_document_is_refused_with_the_reason() {
    let fault = |line: &str| {
        let message = Room::with("a.jsonl", line).prepare().unwrap_err().to_string();
        message.split_once("a.jsonl ").unwrap().1.split_once("; correct").unwrap().0.to_owned()
    };
    assert_eq!(fault(r#"{"prompt": "a"}"#), "has a `prompt` and no `completion`");
    assert_eq!(fault(r#"{"completion": "a"}"#), "has a `completion` and no `prompt`");
    let mixed = "has a string as `prompt` and an array as `completion`, and not two strings or two arrays";
    assert_eq!(fault(r#"{"prompt": "a", "completion": []}"#), mixed);
    let numbers = "has a number as `prompt` and a boolean as `completion`, and not two strings or two arrays";
    assert_eq!(fault(r#"{"prompt": 1, "completion": true}"#), numbers);
    assert_eq!(fault(r#"{"messages": "a"}"#), "has a string in the field `messages` and not an array");
    assert_eq!(fault(r#"{"messages": []}"#), "has no message in the field `messages`");
    for (message, part) in [
        (r#"{"content": "a"}"#, "missing field `role`"),
        (r#"{"role": 1}"#, "the field `role` is no string"),
        (r#"["user", "a"]"#, "invalid type: sequence, expected an object"),
    ] {
        let found = fault(&format!("{{\"messages\": [{message}]}}"));
        assert!(found.starts_with(&format!("has no messages in the field `messages`: {part}")), "{found}");
    }
    let message = r#"[{"role": "user", "content": "a"}]"#;
    let both = fault(&format!("{{\"text\": \"a\", \"messages\": {message}}}"));
    assert_eq!(both, "has several documents: `text`, `messages`");
    let tools = fault(&format!("{{\"tools\": [1], \"messages\": {message}}}"));
    assert_eq!(tools, "has a number in the array `tools` and not an object");
    let variables =
        fault(&format!("{{\"chat_template_kwargs\": 1, \"prompt\": {message}, \"completion\": {message}}}"));
    assert_eq!(variables, "has a number in the field `chat_template_kwargs` and not an object");
}

/// An encoding of bytes with a chat template: `u:` and `a:` before the messages of users and of assistants, and a line
/// feed after each. With `shortens`, all answers but the last are written as `...`.
struct Chats {
    shortens: bool,
}

impl Encode for Chats {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenError> {
        Bytes.encode(text)
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenError> {
        Bytes.decode(tokens)
    }

    fn vocabulary(&self) -> usize {
        Bytes.vocabulary()
    }

    fn fingerprint(&self) -> String {
        format!("chats {}", self.shortens)
    }

    fn chat(&self, messages: &[Message], _: &ChatVariables, asks_for_answer: bool) -> Result<Chat, TokenError> {
        let mut text = String::new();
        for (index, message) in messages.iter().enumerate() {
            let json: serde_json::Value = serde_json::from_str(message.json()).unwrap();
            let is_short = self.shortens && message.role() == "assistant" && index + 1 < messages.len();
            let content = if is_short { "..." } else { json["content"].as_str().unwrap() };
            text += &format!("{}:{content}\n", &message.role()[..1]);
        }
        Ok(Chat { text: text + if asks_for_answer { "a:" } else { "" }, answers: Vec::new() })
    }
}

fn of_chats(lines: &str, shortens: bool) -> Result<Vec<String>, TokenError> {
    let mut room = Room::with("a.jsonl", lines);
    room.options.end_of_document = Some(u32::from(b'.'));
    prepare(&room.source, &Chats { shortens }, &room.options).map(|file| marked(&file))
}

const CONVERSATION: &str = r#"{"messages": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "one"},
    {"role": "user", "content": "2?"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "bye"}]}"#;

#[test]
fn the_answers_of_a_conversation_are_trained_on() {
    let line = CONVERSATION.replace('\n', " ");
    assert_eq!(of_chats(&line, false).unwrap(), ["[u:1?\na:]one\n[u:2?\na:]two\n[u:bye\n]"]);
    let begins = r#"{"messages": [{"role": "assistant", "content": "hello"}]}"#;
    assert_eq!(of_chats(begins, false).unwrap(), ["[a:]hello\n"]);
}

#[test]
fn a_conversation_without_an_answer_is_refused_with_its_line_and_roles() {
    let asked = r#"{"role": "user", "content": "1?"}"#;
    let misspelt = format!("{{\"messages\": [{asked}, {{\"role\": \"asistant\", \"content\": \"one\"}}, {asked}]}}");
    let error = of_chats(&format!("{}\n{misspelt}", CONVERSATION.replace('\n', " ")), false).unwrap_err();
    assert!(matches!(error, TokenError::Document { line: Some(2), .. }), "{error:?}");
    let expected = "the conversation has no message with the role `assistant`, but the roles user, asistant; rename the \
                    role of the answers, or leave the conversation out";
    assert_eq!(error.source().unwrap().to_string(), expected);
    let completion = format!("{{\"prompt\": [{asked}], \"completion\": [{}]}}", asked.replace("user", "model"));
    assert_eq!(of_chats(&completion, false).unwrap(), ["[u:1?\n]m:1?\n"], "the whole completion is trained on");
}

#[test]
fn the_completion_of_messages_is_trained_on() {
    let line = r#"{"prompt": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "one"},
        {"role": "user", "content": "2?"}], "completion": [{"role": "assistant", "content": "two"}]}"#;
    let line = line.replace('\n', " ");
    assert_eq!(of_chats(&line, false).unwrap(), ["[u:1?\na:one\nu:2?\na:]two\n"]);
    assert_eq!(of_chats(&line, true).unwrap(), ["[u:1?\na:...\nu:2?\na:]two\n"]);
}

#[test]
fn a_template_that_changes_earlier_answers_is_refused_with_the_ways_out() {
    let error = of_chats(&CONVERSATION.replace('\n', " "), true).unwrap_err();
    let cause = error.source().unwrap().to_string();
    let expected = "the chat template writes an answer in another way when messages follow it, so its place is not \
                    known; mark the answers";
    assert!(cause.starts_with(expected), "{cause}");
}

#[test]
fn messages_without_a_template_are_an_error() {
    let room = Room::with("a.jsonl", CONVERSATION.replace('\n', " "));
    let error = room.prepare().unwrap_err();
    assert!(error.to_string().starts_with("cannot tokenise line 1 of "), "{error}");
    let TokenError::Document { source, line: Some(1), .. } = error else { panic!("{error:?}") };
    assert!(matches!(*source, TokenError::NoChatTemplate), "{source:?}");
}

/// A test encoding in which each byte is a token, except that `ab` is a single token.
struct Pairs;

impl Encode for Pairs {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenError> {
        Ok(text.replace("ab", "#").bytes().map(u32::from).collect())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenError> {
        Bytes.decode(tokens)
    }

    fn vocabulary(&self) -> usize {
        256
    }

    fn fingerprint(&self) -> String {
        "pairs".into()
    }
}

#[test]
fn a_token_with_a_character_of_a_target_is_a_target() {
    let divided = |text: &str, targets: &[Range<usize>]| {
        let tokens = Pairs.encode_targets(text, targets).unwrap();
        let shown = tokens.iter().map(|(token, is_target)| (Bytes.decode(&[*token]).unwrap(), *is_target));
        shown.map(|(token, is_target)| if is_target { format!("{token}!") } else { token }).collect::<String>()
    };
    let one = |target: Range<usize>| vec![target];
    assert_eq!(divided("xabx", &one(2..4)), "x#!x!", "it ends in the target");
    assert_eq!(divided("xabx", &one(0..2)), "x!#!x", "it begins in the target");
    assert_eq!(divided("xabx", &one(1..3)), "x#!x");
    assert_eq!(divided("xabx", &one(2..2)), "x#x");
    assert_eq!(divided("abxab", &[0..1, 4..5]), "#!x#!");
    assert_eq!(divided("abx", &[]), "#x");
    let room = Room::with("a.jsonl", r#"{"prompt": "xa", "completion": "bx"}"#);
    let file = prepare(&room.source, &Pairs, &room.options).unwrap();
    assert_eq!((documents(&file), marked(&file)), (vec!["x#x".into()], vec!["[x]#x".into()]));
}

#[test]
fn a_prompt_that_is_too_long_to_be_tokenised_at_once_is_refused() {
    let line = format!("{{\"prompt\": \"{}\", \"completion\": \"x\"}}", "a".repeat(9 << 20));
    let error = Room::with("a.jsonl", line).prepare().unwrap_err();
    let expected =
        "its text has 9437185 bytes, but that of a prompt or a conversation may have at most 8388608; shorten it";
    assert_eq!(error.source().unwrap().to_string(), expected);
}

#[test]
fn long_prompts_are_divided_where_they_end() {
    let (prompt, completion) = ("é".repeat(400_000), "字".repeat(300_000));
    let room = Room::with("a.jsonl", format!("{{\"prompt\": \"{prompt}\", \"completion\": \"{completion}\"}}"));
    let file = room.prepare().unwrap();
    assert_eq!((file.len(), file.documents()), (1_700_000, 1));
    assert_eq!([0, 799_999, 800_000].map(|position| file.is_target(position)), [false, false, true]);
    assert!(fs::metadata(file.path()).unwrap().len() < 4_000_000);
}
