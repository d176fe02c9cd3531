//! Tests tokenizers against tokens that are counted by hand, and against those of Hugging Face's Python package.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stageline_data::{Encode, TokenError, Tokenizer, prepare};

use crate::{Room, tokens};

/// The text of a `tokenizer.json` for tests, whose tokens are whole words and whose token numbers have gaps.
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

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokens/fixtures").join(name)
}

#[test]
fn words_have_the_tokens_of_the_vocabulary() {
    let room = Room::with("a.txt", "A stage trains.\nA model trains.\n");
    let tokenizer = words(room.root.path());
    assert_eq!(tokenizer.encode("A stage trains a stage").unwrap(), [0, 1, 2, 0, 1]);
    assert_eq!(tokenizer.decode(&[0, 1, 7, 9]).unwrap(), "a stage ? <end>");
    assert_eq!((tokenizer.vocabulary(), tokenizer.token("<end>"), tokenizer.token("start")), (10, Some(9), None));
    let mut options = room.options.clone();
    options.end_of_document = tokenizer.token("<end>");
    let file = prepare(&room.source, &tokenizer, &options).unwrap();
    assert_eq!((tokens(&file), file.vocabulary()), (vec![0, 1, 2, 3, 0, 7, 2, 3, 9], 10));
}

#[test]
fn a_token_outside_the_vocabulary_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let error = words(root.path()).decode(&[0, 10]).unwrap_err();
    assert!(matches!(error, TokenError::UnknownToken { token: 10, vocabulary: 10 }));
}

#[test]
fn the_fingerprint_is_the_sha_256_of_the_file() {
    // Computed with `sha256sum crates/stageline-data/tests/tokens/fixtures/bpe.json`.
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
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
}

#[test]
fn a_long_text_of_lines_has_the_tokens_of_its_lines() {
    let line = "Each stage trains on its own device; the pipeline, 123 stages long, is the model.\n";
    let room = Room::with("a.txt", line.repeat(20_000)); // four pieces
    let tokenizer = Tokenizer::open(&fixture("bpe.json")).unwrap();
    let file = prepare(&room.source, &tokenizer, &room.options).unwrap();
    assert!(tokens(&file) == tokenizer.encode(line).unwrap().repeat(20_000));
}

/// Tests a text of 1.5 million blanks and two words. The regular expressions of tokenizers give up after a number of
/// steps and then leave the rest of a text unsplit, so the text must be encoded in pieces.
#[test]
fn a_long_run_of_blanks_does_not_change_the_tokens_behind_it() {
    let tokenizer = Tokenizer::open(&fixture("bpe.json")).unwrap();
    let text = format!("{}the stages", " ".repeat(1_500_000));
    let room = Room::with("a.txt", &text);
    let tokens = tokens(&prepare(&room.source, &tokenizer, &room.options).unwrap());
    assert!(tokenizer.decode(&tokens).unwrap() == text);
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
    // A folder stands for everything that is no regular file, such as a pipe.
    assert!(matches!(Tokenizer::open(root.path()), Err(TokenError::NotAFile { .. })));
}
