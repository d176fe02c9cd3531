//! Fuzzes the opening and the use of tokenizers: the input is a `tokenizer.json`.

use std::fs;

use stageline_data::{Encode, TokenError, Tokenizer};

/// The largest length in bytes of a fuzz input. Longer inputs are skipped, because shorter ones reach the same code.
const LIMIT: usize = 4_096;

/// The limit in bytes on an error message about a tokenizer, which contains the file's path.
const LONGEST: usize = 1_000;

/// The text that every tokenizer of the fuzz target encodes.
const TEXT: &str = "a stage trains.\n  abcabc \u{e9}\u{5b57}";

/// Opens a fuzz input as a tokenizer, and encodes and decodes a text. Asserts that a panic of the tokenizer library
/// becomes an error that is safe to print, and that two encodings are equal.
pub fn tokenizer(bytes: &[u8]) {
    if bytes.len() > LIMIT {
        return;
    }
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let root = root.expect("temporary folders can be made");
    let path = root.path().join("tokenizer.json");
    fs::write(&path, bytes).expect("files can be made");
    let encoded = Tokenizer::open(&path).and_then(|tokenizer| {
        let tokens = tokenizer.encode(TEXT)?;
        assert_eq!(tokenizer.encode(TEXT)?, tokens, "an encoding is not random");
        tokenizer.decode(&tokens)
    });
    if let Err(error) = encoded {
        assert_shown(&error);
    }
}

/// Asserts that the message of an error about a tokenizer is short and has no control characters.
fn assert_shown(error: &TokenError) {
    let text = error.to_string();
    assert!(text.len() < LONGEST, "{} bytes: {text}", text.len());
    assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text:?}");
}
