//! Tests which documents a text file, a JSON-lines file or a folder has, and which tokens a document gets.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use stageline_data::{Bytes, Encode, TokenError, TokenFile, TokenOptions, prepare};

use crate::{Room, documents, reopen, tokens};

/// A test encoding in which each character is a token. The token's number is the character's Unicode number.
struct Characters {
    vocabulary: usize,
}

impl Encode for Characters {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenError> {
        Ok(text.chars().map(u32::from).collect())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenError> {
        Ok(tokens.iter().filter_map(|&token| char::from_u32(token)).collect())
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn fingerprint(&self) -> String {
        "characters".into()
    }
}

const CHARACTERS: Characters = Characters { vocabulary: 0x11_0000 };

#[test]
fn a_text_file_is_one_document_of_any_bytes() {
    let bytes: Vec<u8> = (0..=255).rev().collect();
    let file = Room::with("a.bin", &bytes).prepare().unwrap();
    assert_eq!((file.len(), file.documents(), file.vocabulary()), (256, 1, 256));
    assert_eq!(tokens(&file), (0..256).rev().collect::<Vec<u32>>());
    let mut some = [0; 3];
    file.read(253, &mut some).unwrap();
    assert_eq!(some, [2, 1, 0]);
    file.read(256, &mut []).unwrap();
}

#[test]
fn a_json_lines_file_has_a_document_a_line() {
    let lines = "{\"id\": 1, \"text\": \"one\"}\n\n{\"text\": \"\"}\n{\"text\": \"zw\\u00f6lf\\n\"}";
    for name in ["a.jsonl", "a.ndjson"] {
        let file = Room::with(name, lines).prepare().unwrap();
        assert_eq!(documents(&file), ["one", "zwölf\n"]);
    }
    assert_eq!(documents(&Room::with("a.json", lines).prepare().unwrap()), [lines]);
}

#[test]
fn another_field_may_have_the_text() {
    let mut room = Room::with("a.jsonl", "{\"body\": \"one\", \"text\": \"two\"}");
    room.options.text_field = "body".into();
    assert_eq!(documents(&room.prepare().unwrap()), ["one"]);
    room.options.text_field = "text".into();
    assert_eq!(documents(&room.prepare().unwrap()), ["two"]);
}

#[test]
fn a_fault_in_line_3_is_an_error_with_the_file_and_the_line_and_leaves_nothing() {
    let room =
        Room::with("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"id\": 1, \"url\": \"\", \"txt\": \"c\"}\n");
    let expected = format!(
        "line 3 of {} has no field `text`, `messages` or `prompt`, but has the fields id, url, txt; correct the line, or \
         rename the field with the text, such as `txt`, to `text`",
        room.source.display()
    );
    assert_eq!(room.prepare().unwrap_err().to_string(), expected);
    assert!(room.names().is_empty());
}

#[test]
fn a_folder_is_its_files_in_order_and_each_document_gets_its_end() {
    let mut room = Room::with("2.txt", "two");
    let folder = room.root.path().join("source");
    fs::create_dir_all(folder.join("3")).unwrap();
    fs::rename(&room.source, folder.join("2.txt")).unwrap();
    fs::write(folder.join("1.md"), "one").unwrap();
    fs::write(folder.join("3/x.txt"), "three").unwrap();
    fs::write(folder.join("empty.txt"), "").unwrap();
    (room.source, room.options.end_of_document) = (folder, Some(u32::from(b'.')));
    assert_eq!(documents(&room.prepare().unwrap()), ["one.", "two.", "three."]);
    // In a folder with JSON-lines files, other files usually describe the data, so they are left out.
    for (name, texts) in [("3/x.jsonl", ["four", "five"]), ("0.ndjson", ["six", "seven"])] {
        fs::write(room.source.join(name), texts.map(|text| format!("{{\"text\": \"{text}\"}}\n")).concat()).unwrap();
    }
    assert_eq!(documents(&room.prepare().unwrap()), ["six.", "seven.", "four.", "five."]);
}

#[test]
fn a_text_that_ends_with_the_end_token_gets_no_second_one() {
    let lines = ["", "one.", "and", "", ".", "two..", ".three", "four.\\n"];
    let mut room = Room::with("a.jsonl", lines.map(|text| format!("{{\"text\": \"{text}\"}}\n")).concat());
    room.options.end_of_document = Some(u32::from(b'.'));
    let expected = ["one.", "and.", ".", "two..", ".three.", "four.\n."];
    assert_eq!(documents(&room.prepare().unwrap()), expected);
    room.options.end_of_document = None;
    assert_eq!(documents(&room.prepare().unwrap()), ["one.", "and", ".", "two..", ".three", "four.\n"]);
}

#[test]
fn the_end_token_of_a_long_text_is_that_of_its_last_piece() {
    let lines = "a\n".repeat(300_000); // encoded in two pieces, each of which ends with a line feed
    for (text, expected) in [(lines.clone(), lines.clone()), (format!("{lines}b"), format!("{lines}b\n"))] {
        let mut room = Room::with("a.txt", text);
        room.options.end_of_document = Some(u32::from(b'\n'));
        assert!(documents(&room.prepare().unwrap()) == [expected]);
    }
}

#[test]
fn the_end_of_a_document_may_be_a_new_token() {
    let mut room = Room::with("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    room.options.end_of_document = Some(256);
    let file = room.prepare().unwrap();
    assert_eq!((tokens(&file), file.vocabulary()), (vec![97, 256, 98, 256], 257));
    room.options.end_of_document = Some(257);
    assert!(matches!(room.prepare(), Err(TokenError::OutOfRange { name: "end_of_document", .. })));
}

#[test]
fn the_start_of_a_document_is_found_from_each_of_its_tokens() {
    let file = Room::with("a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"d\"}\n{\"text\": \"ef\"}\n").prepare().unwrap();
    let starts: Vec<_> = (0..file.len()).map(|position| file.document_start(position)).collect();
    assert_eq!(starts, [0, 0, 0, 3, 4, 4]);
}

#[test]
fn tokens_have_four_bytes_only_if_the_vocabulary_needs_them() {
    let room = Room::with("a.txt", "a字\u{1f600}");
    let wide = prepare(&room.source, &CHARACTERS, &room.options).unwrap();
    assert_eq!(tokens(&wide), [0x61, 0x5b57, 0x1_f600]);
    let size = |file: &TokenFile| fs::metadata(file.path()).unwrap().len();
    assert_eq!(size(&wide), 112 + 3 * 4 + 8 + 32);
    assert_eq!((reopen(&wide).fingerprint(), reopen(&wide).vocabulary()), (wide.fingerprint(), 0x11_0000));

    let room = Room::with("a.txt", "a\u{ffff}");
    let narrow = prepare(&room.source, &Characters { vocabulary: 1 << 16 }, &room.options).unwrap();
    assert_eq!((tokens(&narrow), size(&narrow)), (vec![0x61, 0xffff], 112 + 2 * 2 + 8 + 32));
}

#[test]
fn the_largest_token_is_found_at_any_position() {
    for position in [0, 65_535, 65_536, 69_999] {
        let mut text = vec![b'a'; 70_000];
        text[position] = b'b';
        let file = Room::with("a.txt", &text).prepare().unwrap();
        assert_eq!((file.largest_token().unwrap(), file.vocabulary()), (0x62, 256), "{position}");
    }
}

#[test]
fn text_that_is_not_utf_8_is_an_error_with_its_offset_unless_bytes_are_the_tokens() {
    let mut text = "é\n".repeat(500_000).into_bytes(); // encoded in three pieces
    text[1_200_001] = 0xff;
    let room = Room::with("a.txt", &text);
    let error = prepare(&room.source, &CHARACTERS, &room.options).unwrap_err();
    let expected = format!("cannot tokenise {}; correct it, or leave it out", room.source.display());
    assert_eq!(error.to_string(), expected);
    let offset = 1_200_000; // the start of the character whose second byte is wrong
    let cause = error.source().unwrap().to_string();
    assert!(cause.starts_with(&format!("byte {offset} of the text is not UTF-8")), "{cause}");
    let expected: Vec<_> = text.iter().map(|&byte| u32::from(byte)).collect();
    assert!(tokens(&room.prepare().unwrap()) == expected);
}

#[test]
fn a_long_text_is_encoded_without_a_gap() {
    let text: String = (0..300_000).map(|i| format!("{i}é\n")).collect();
    let room = Room::with("a.txt", &text);
    let file = prepare(&room.source, &CHARACTERS, &room.options).unwrap();
    assert!(CHARACTERS.decode(&tokens(&file)).unwrap() == text);
    let json = Room::with("a.jsonl", format!("{{\"text\": {:?}}}", text));
    let same = prepare(&json.source, &CHARACTERS, &json.options).unwrap();
    assert_eq!(same.fingerprint(), file.fingerprint());
}

/// Tests more documents than fit into one batch. Some of them are longer than a piece, and some longer than a batch.
#[test]
fn many_documents_keep_their_order() {
    let text = |i: usize| match i % 500 {
        7 => format!("{i} ").repeat(200_000),
        9 => format!("{i}").repeat(3_000_000),
        _ => format!("{i} ").repeat(i % 90),
    };
    let texts: Vec<_> = (0..1_000).map(text).collect();
    let line = |text: &String| match text.len() % 2 {
        0 => format!("{{\"text\": \"{text}\"}}\n"),
        _ => format!("{{\"prompt\": \"\", \"completion\": \"{text}\"}}\n"),
    };
    let room = Room::with("a.jsonl", texts.iter().map(line).collect::<String>());
    let expected: Vec<_> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    assert!(expected.iter().map(String::len).sum::<usize>() > 12 << 20 && expected.len() > 900);
    assert!(documents(&room.prepare().unwrap()) == expected);
}

#[test]
fn of_several_faulty_lines_the_first_is_the_error() {
    let encoding = Characters { vocabulary: 1_000 };
    let fault = |lines: &str| prepare(&Room::with("a.jsonl", lines).source, &encoding, &Room::with("b", "").options);
    let (good, unknown) = ("{\"text\": \"a\"}\n", "{\"text\": \"字\"}\n");
    let error = fault(&[good, unknown, good, unknown, "no JSON\n"].concat()).unwrap_err();
    assert!(matches!(error, TokenError::Document { line: Some(2), .. }), "{error:?}");
    let error = fault(&[good, good, "no JSON\n", unknown].concat()).unwrap_err();
    assert!(matches!(error, TokenError::Line { line: 3, .. }), "{error:?}");
}

#[test]
fn an_encoding_that_exceeds_its_vocabulary_is_refused() {
    let room = Room::with("a.txt", "a字");
    let error = prepare(&room.source, &Characters { vocabulary: 1_000 }, &room.options).unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.starts_with("the token id 23383 is not in the vocabulary, which has ids below 1000"), "{cause}");
}

#[test]
fn sources_without_text_are_refused_with_their_path() {
    let empty = Room::with("a.txt", "");
    let message = empty.prepare().unwrap_err().to_string();
    let expected =
        format!("nothing to tokenise at {}: found no document with text; give another path", empty.source.display());
    assert_eq!(message, expected);
    assert!(matches!(Room::with("a.jsonl", "\n").prepare(), Err(TokenError::NothingToRead { .. })));
    let gone = PathBuf::from("/no/such\nfile");
    let message = prepare(&gone, &Bytes, &TokenOptions::default()).unwrap_err().to_string();
    assert_eq!(message, "/no/such\\nfile does not exist; give the path of a file or folder that does");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_does_not_block() {
    let room = Room::with("a.txt", "a");
    let pipe = room.root.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(matches!(prepare(&pipe, &Bytes, &room.options), Err(TokenError::NotAFile { .. })));
    assert!(matches!(TokenFile::open(&pipe), Err(TokenError::NotAFile { .. })));
}

#[test]
fn whole_documents_are_held_out() {
    let lines = "{\"text\": \"ten bytes.\"}\n".repeat(30);
    let (train, held_out) = Room::with("a.jsonl", lines).prepare().unwrap().split(0.12).unwrap();
    assert_eq!((train, held_out), (0..260, 260..300));
    let (train, held_out) = Room::with("a.txt", "x".repeat(300)).prepare().unwrap().split(0.12).unwrap();
    assert_eq!((train, held_out), (0..264, 264..300));
}

#[test]
fn a_folder_of_json_and_notes_is_not_read_as_text() {
    let mut room = Room::with("unused", "");
    room.source = room.root.path().join("data");
    fs::create_dir(&room.source).unwrap();
    fs::write(room.source.join("train.json"), "{\"text\": \"a\"}\n").unwrap();
    fs::write(room.source.join("README.md"), "about the data").unwrap();
    let error = room.prepare().map(drop).unwrap_err();
    let TokenError::JsonInFolder { path } = &error else { panic!("{error}") };
    assert!(path.ends_with("train.json") && error.to_string().contains("rename it to .jsonl"), "{error}");
    // In a folder with source code, a JSON file is read as text.
    fs::write(room.source.join("main.py"), "print()").unwrap();
    assert_eq!(room.prepare().unwrap().documents(), 3);
}
