//! Tests tokenizers against tokens that were worked out by hand, and against those of Hugging Face's Python package.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stageline_data::{Bytes, Encode, TokenError, Tokenizer, prepare};

use crate::{Room, tokens};

/// The text of a `tokenizer.json` for tests. Its tokens are whole words, and the token numbers have gaps.
const WORDS: &str = r#"{
    "version": "1.0", "truncation": null, "padding": null, "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "added_tokens": [{"id": 9, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "model": {"type": "WordLevel", "unk_token": "?",
              "vocab": {"a": 0, "stage": 1, "trains": 2, ".": 3, "?": 7, "<end>": 9}}
}"#;

fn words(root: &Path) -> Tokenizer {
    let path = root.join("tokenizer.json");
    fs::write(&path, WORDS).unwrap();
    Tokenizer::open(&path).unwrap()
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokens/fixtures").join(name)
}

#[test]
fn a_folder_has_a_tokenizer_none_or_one_that_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Tokenizer::in_folder(folder.path()).unwrap().is_none());
    fs::write(folder.path().join("merges.txt"), "").unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), "{}").unwrap();
    let error = Tokenizer::in_folder(folder.path()).unwrap_err();
    assert!(matches!(&error, TokenError::OtherForm { path } if path.ends_with("merges.txt")), "{error}");
    assert!(error.to_string().contains("save_pretrained"), "{error}");
    words(folder.path());
    assert_eq!(Tokenizer::in_folder(folder.path()).unwrap().unwrap().vocabulary(), 10);
}

#[test]
fn words_have_the_tokens_of_the_vocabulary() {
    let room = Room::with("a.txt", "A stage trains.\nA model trains.\n");
    let tokenizer = words(room.root.path());
    assert_eq!(tokenizer.encode("A stage trains a stage").unwrap(), [0, 1, 2, 0, 1]);
    assert_eq!(tokenizer.decode(&[0, 1, 7, 9]).unwrap(), "a stage ? <end>");
    assert_eq!((tokenizer.vocabulary(), tokenizer.token("<end>"), tokenizer.token("start")), (10, Some(9), None));
    assert!(tokenizer.may_end_document(9) && !tokenizer.may_end_document(10));
    assert!(Bytes.may_end_document(256) && !Bytes.may_end_document(257));
    let mut options = room.options.clone();
    options.end_of_document = tokenizer.token("<end>");
    let file = prepare(&room.source, &tokenizer, &options).unwrap();
    assert_eq!((tokens(&file), file.vocabulary()), (vec![0, 1, 2, 3, 0, 7, 2, 3, 9], 10));
}

/// Returns the test tokenizer [`WORDS`] with a post-processor that adds special tokens to a text. `single` is the
/// template of the post-processor. `end` is the token number of `<end>` in the template.
fn with_template(root: &Path, single: &str, end: u32) -> Result<Tokenizer, TokenError> {
    let special = |name: &str, id: u32| format!(r#""{name}": {{"id": "{name}", "ids": [{id}], "tokens": ["{name}"]}}"#);
    let template = format!(
        r#"{{"type": "TemplateProcessing", "single": [{single}], "pair": [{TEXT}, {TEXT}], "special_tokens": {{{}, {}}}}}"#,
        special("?", 7),
        special("<end>", end)
    );
    let json = WORDS.replace(r#""post_processor": null"#, &format!(r#""post_processor": {template}"#));
    assert_ne!(json, WORDS);
    let path = root.join("tokenizer.json");
    fs::write(&path, json).unwrap();
    Tokenizer::open(&path)
}

/// The JSON that stands for the text itself in the template of a tokenizer's post-processor. The template's other
/// entries are special tokens.
const TEXT: &str = r#"{"Sequence": {"id": "A", "type_id": 0}}"#;

/// Returns the template of a post-processor that adds the special token `?` before a text and `<end>` after it.
fn start_and_end() -> String {
    let special = |name: &str| format!(r#"{{"SpecialToken": {{"id": "{name}", "type_id": 0}}}}"#);
    format!("{}, {TEXT}, {}", special("?"), special("<end>"))
}

#[test]
fn special_tokens_are_around_every_document_and_prompt() {
    let lines = ["a stage", "", " ", "trains ."].map(|text| format!("{{\"text\": \"{text}\"}}\n")).concat();
    let mut room = Room::with("a.jsonl", lines);
    let tokenizer = with_template(room.root.path(), &start_and_end(), 9).unwrap();
    assert_eq!(tokenizer.encode("a stage").unwrap(), [0, 1]);
    assert_eq!(tokenizer.encode_whole("a stage").unwrap(), [7, 0, 1, 9]);
    assert_eq!(tokenizer.encode_whole("").unwrap(), [7, 9]);
    // An end-of-document token that the template has already added is not added again. Any other one is appended.
    for (end, expected) in [
        (None, vec![7, 0, 1, 9, 7, 2, 3, 9]),
        (Some(9), vec![7, 0, 1, 9, 7, 2, 3, 9]),
        (Some(3), vec![7, 0, 1, 9, 3, 7, 2, 3, 9, 3]),
    ] {
        room.options.end_of_document = end;
        let file = prepare(&room.source, &tokenizer, &room.options).unwrap();
        assert_eq!((tokens(&file), file.documents()), (expected, 2), "{end:?}");
    }
}

#[test]
fn a_text_that_ends_with_the_special_end_token_gets_no_second_one() {
    let lines = ["a stage <end>", "", "a stage", "<end>", "<end> a"].map(|text| format!("{{\"text\": \"{text}\"}}\n"));
    let mut room = Room::with("a.jsonl", lines.concat());
    let tokenizer = words(room.root.path());
    for (end, expected) in [
        (None, vec![0, 1, 9, 0, 1, 9, 9, 0]),
        (Some(9), vec![0, 1, 9, 0, 1, 9, 9, 9, 0, 9]),
        (Some(3), vec![0, 1, 9, 3, 0, 1, 3, 9, 3, 9, 0, 3]),
    ] {
        room.options.end_of_document = end;
        let file = prepare(&room.source, &tokenizer, &room.options).unwrap();
        assert_eq!((tokens(&file), file.documents()), (expected, 4), "{end:?}");
    }
}

#[test]
fn a_text_with_an_end_token_still_gets_the_special_tokens_of_the_template() {
    let mut room = Room::with("a.txt", "a <end>");
    room.options.end_of_document = Some(9);
    let after = |name: &str| format!(r#"{TEXT}, {{"SpecialToken": {{"id": "{name}", "type_id": 0}}}}"#);
    for (name, expected) in [("<end>", vec![0, 9, 9]), ("?", vec![0, 9, 7, 9])] {
        let tokenizer = with_template(room.root.path(), &after(name), 9).unwrap();
        assert_eq!(tokens(&prepare(&room.source, &tokenizer, &room.options).unwrap()), expected, "{name}");
    }
}

/// Tests documents of several pieces, with and without a template that ends every text with `<end>`. Some of the
/// documents end with pieces of spaces, which have no tokens.
#[test]
fn a_text_of_several_pieces_ends_with_one_end_token() {
    let line = "a stage trains <end>\n";
    let blanks = " ".repeat(600_000);
    let long = line.repeat(30_000); // encoded in two pieces
    for (text, is_ended) in [
        (long.clone(), true),
        (format!("{long}a"), false),
        (format!("a <end>{blanks}"), true),
        (format!("<end> a{blanks}"), false),
    ] {
        let mut room = Room::with("a.txt", &text);
        room.options.end_of_document = Some(9);
        let plain = words(room.root.path());
        let encoded = plain.encode(&text).unwrap();
        assert_eq!(encoded.last() == Some(&9), is_ended);
        let expected = [encoded.clone(), if is_ended { vec![] } else { vec![9] }].concat();
        assert!(tokens(&prepare(&room.source, &plain, &room.options).unwrap()) == expected);
        // The template's special tokens are added to every text, so `<end>` ends the document and is not appended
        // again.
        let template = with_template(room.root.path(), &start_and_end(), 9).unwrap();
        let expected = [vec![7], encoded, vec![9]].concat();
        assert!(tokens(&prepare(&room.source, &template, &room.options).unwrap()) == expected);
    }
}

#[test]
fn templates_without_one_text_or_with_unknown_tokens_are_refused() {
    let room = Room::with("a.txt", "a stage");
    let error = with_template(room.root.path(), &start_and_end(), 40).unwrap_err().to_string();
    let part =
        "tokenizer.json is no tokenizer: its post_processor adds the token 40, which is not in its vocabulary of 10";
    assert!(error.contains(part), "{error}");
    let error = with_template(room.root.path(), &format!("{TEXT}, {TEXT}"), 9).unwrap_err().to_string();
    assert!(error.contains("its post_processor does not keep a text in one piece"), "{error}");
}

#[test]
fn a_token_outside_the_vocabulary_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let error = words(root.path()).decode(&[0, 10]).unwrap_err();
    assert!(matches!(error, TokenError::UnknownToken { token: 10, vocabulary: 10 }));
}

#[test]
fn the_fingerprint_is_the_sha_256_of_the_file() {
    // The expected hash was computed with `sha256sum crates/stageline-data/tests/tokens/fixtures/bpe.json`.
    let expected = "003e93e55f2bc77e8d25084108f53864feafdfb3a8ae4937d62f2d5a3ba08269";
    assert_eq!(Tokenizer::open(&fixture("bpe.json")).unwrap().fingerprint(), expected);
}

#[test]
fn a_byte_level_bpe_gives_the_tokens_that_python_gives() {
    let tokenizer = Tokenizer::open(&fixture("bpe.json")).unwrap();
    assert_eq!(tokenizer.vocabulary(), 300);
    let expected: Value = serde_json::from_slice(&fs::read(fixture("bpe-expected.json")).unwrap()).unwrap();
    let expected = expected.as_array().unwrap();
    assert_eq!(expected.len(), 7);
    for case in expected {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<_> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.encode_whole(text).unwrap(), [vec![0], ids.clone()].concat(), "{text:?}");
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
}

#[test]
fn a_long_text_of_lines_has_the_tokens_of_its_lines() {
    let line = "Each stage trains on its own device; the pipeline, 123 stages long, is the model.\n";
    let room = Room::with("a.txt", line.repeat(20_000)); // encoded in four pieces
    let tokenizer = Tokenizer::open(&fixture("bpe.json")).unwrap();
    let file = prepare(&room.source, &tokenizer, &room.options).unwrap();
    // The start token, 0, is added once to the text, and not to each of its pieces.
    assert!(tokens(&file) == [vec![0], tokenizer.encode(line).unwrap().repeat(20_000)].concat());
}

#[test]
fn a_long_text_without_line_feeds_has_the_tokens_of_its_words() {
    let tokenizer = Tokenizer::open(&fixture("bpe.json")).unwrap();
    let words = " the stage"; // a piece of 512 KiB would end within a word
    let room = Room::with("a.txt", words.repeat(60_000)); // encoded in two pieces
    let file = prepare(&room.source, &tokenizer, &room.options).unwrap();
    assert!(tokens(&file) == [vec![0], tokenizer.encode(words).unwrap().repeat(60_000)].concat());
}

/// Tests a text of 1.5 million spaces and two words. A tokenizer's regular expression gives up after a number of steps
/// and leaves the rest of the text unsplit. The text must therefore be encoded in pieces.
#[test]
fn a_long_run_of_blanks_does_not_change_the_tokens_behind_it() {
    let tokenizer = Tokenizer::open(&fixture("bpe.json")).unwrap();
    let text = format!("{}the stages", " ".repeat(1_500_000));
    let room = Room::with("a.txt", &text);
    let tokens = tokens(&prepare(&room.source, &tokenizer, &room.options).unwrap());
    assert!(tokenizer.decode(&tokens).unwrap() == format!("<|endoftext|>{text}"));
    assert!(tokens.ends_with(&tokenizer.encode("  the stages").unwrap()));
}

#[test]
fn a_file_that_is_no_tokenizer_is_refused_with_its_path() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("tokenizer.json");
    for json in ["", "{}", "[1]", "{\"model\": {\"type\": \"\u{202e}\"}}"] {
        fs::write(&path, json).unwrap();
        let message = Tokenizer::open(&path).unwrap_err().to_string();
        assert!(message.starts_with(&format!("{} is no tokenizer: ", path.display())), "{message}");
        assert!(message.ends_with("; give a tokenizer.json of Hugging Face"), "{message}");
        assert!(!message.contains('\u{202e}') && message.len() < 600, "{message}");
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(Tokenizer::open(&path), Err(TokenError::PathNotFound { .. })));
    // A folder is one example of a path that is not a regular file; a pipe is another.
    assert!(matches!(Tokenizer::open(root.path()), Err(TokenError::NotAFile { .. })));
}

/// Tests tokenizer files on which the tokenizer library panics, either when the file is opened or when a text is
/// encoded. Each panic must become an error that names the file. The files are stored inputs of the fuzzer.
#[test]
fn files_on_which_the_tokenizer_library_panics_are_errors_with_their_path() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/tokenizer");
    for (name, part) in [
        ("template-token-missing", "no entry"),
        ("template-second-text", "index out of bounds"),
        ("charsmap-empty", "index out of bounds"),
        ("charsmap-short", "index out of bounds"),
        ("charsmap-long", "Cannot parse precompiled_charsmap"),
        ("prefix-too-long", ""), // the message depends on whether overflow checks are enabled
        ("fixed-length-0", "chunk size must be non-zero"),
    ] {
        let path = seeds.join(name);
        let error = Tokenizer::open(&path).and_then(|tokenizer| tokenizer.encode("a abcabc stage")).unwrap_err();
        assert!(matches!(&error, TokenError::Tokenizer { path: of, .. } if *of == path), "{name}: {error}");
        let message = error.to_string();
        assert!(message.contains(" is no tokenizer: the library tokenizers panicked: "), "{name}: {message}");
        assert!(message.contains(part), "{name}: {message}");
    }
}

#[test]
fn the_dropout_of_a_bpe_is_ignored() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/tokenizer/bpe-dropout");
    assert!(fs::read_to_string(&path).unwrap().contains(r#""dropout":0.5"#));
    let tokenizer = Tokenizer::open(&path).unwrap();
    assert_eq!(tokenizer.encode(&"abc".repeat(50)).unwrap(), [4; 50]);
}
