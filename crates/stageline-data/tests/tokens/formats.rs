//! Tests that data in unsupported formats is rejected with a way to convert it, and that the conversion works.

use std::process::Command;

use stageline_data::TokenError;

use crate::{Room, documents};

/// Tokenises a file with the given name and contents, which must fail. Returns the part of the error message after the
/// path of the file.
fn fault(name: &str, contents: impl AsRef<[u8]>) -> String {
    let message = Room::with(name, contents).prepare().unwrap_err().to_string();
    message.split_once(&format!("{name} ")).unwrap().1.to_owned()
}

const ALPACA: &str = r#"{"instruction": "Add.", "input": "2 + 2", "output": "4"}
{"instruction": "Say a.", "input": "", "output": "a"}
{"instruction": "Say b.", "output": "b"}
"#;

const SHAREGPT: &str = r#"{"id": 7, "conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "2 + 2?"},
    {"from": "gpt", "value": "4"}]}"#;

#[test]
fn lines_of_alpaca_and_of_sharegpt_are_refused_with_a_command_that_converts_them() {
    let renamed = SHAREGPT.replace("from", "role").replace("value", "content");
    let user = |content: &str| format!(r#"{{"role":"user","content":"{content}"}}"#);
    let answer = |content: &str| format!(r#"{{"role":"assistant","content":"{content}"}}"#);
    let alpaca = [(user(r"Add.\n\n2 + 2"), answer("4")), (user("Say a."), answer("a")), (user("Say b."), answer("b"))];
    let alpaca: String = alpaca.map(|(user, answer)| format!("{{\"messages\":[{user},{answer}]}}\n")).concat();
    let system = r#"{"role":"system","content":"Be brief."}"#;
    let sharegpt = format!("{{\"id\":7,\"messages\":[{system},{},{}]}}\n", user("2 + 2?"), answer("4"));
    let kept = sharegpt.replace("\"user\"", "\"human\"").replace("\"assistant\"", "\"gpt\"");
    for (lines, names, expected) in [
        (ALPACA, "the fields `instruction` and `output` of Alpaca", alpaca),
        (SHAREGPT, "`conversations` of ShareGPT, with `from` and `value`", sharegpt),
        (&renamed, "messages in the field `conversations`; rename it to `messages`", kept),
    ] {
        let lines = if lines == ALPACA { lines.to_owned() } else { lines.replace('\n', " ") };
        let room = Room::with("OLD.jsonl", &lines);
        let error = room.prepare().unwrap_err();
        assert!(matches!(error, TokenError::Line { line: 1, .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(names), "{message}");
        let (_, command) = message.split_once(": jq").unwrap();
        if Command::new("jq").arg("--version").output().is_ok() {
            let run = Command::new("sh").args(["-c", &format!("jq{command}")]).current_dir(room.root.path()).output();
            assert!(run.as_ref().unwrap().status.success(), "{run:?}");
            assert_eq!(std::fs::read_to_string(room.root.path().join("NEW.jsonl")).unwrap(), expected);
        }
    }
}

#[test]
fn other_lines_are_refused_with_their_fields_and_a_field_that_may_be_the_text() {
    let advice = "; correct the line, or rename the field with the text, such as `body`, to `text`";
    let found = fault("a.jsonl", r#"{"id": "1", "body": "a text", "title": "b", "tags": ["a long list of tags"]}"#);
    assert_eq!(
        found,
        format!("has no field `text`, `messages` or `prompt`, but has the fields id, body, title, tags{advice}")
    );
    let found = fault("a.jsonl", r#"{"input_ids": [1, 2], "output": 3, "conversations": []}"#);
    let fields = "input_ids, output, conversations";
    assert_eq!(
        found,
        format!("has no field `text`, `messages` or `prompt`, but has the fields {fields}; correct the line")
    );
    let mut room = Room::with("a.jsonl", r#"{"instruction": "a", "output": "b", "conversations": 1}"#);
    room.options.text_field = "output".into();
    assert_eq!(documents(&room.prepare().unwrap()), ["b"]);
}

#[test]
fn files_that_are_no_text_are_refused_with_their_format_and_the_way_out() {
    let data_set = |kind: &str| {
        format!(
            "is {} file and no text; write it as text by Python's datasets.load_dataset(\"{}\", data_files=FILE)[\"train\"]\
             .to_json(\"NEW.jsonl\"), or leave it out",
            kind,
            kind.split_once(' ').unwrap().1.to_lowercase()
        )
    };
    assert_eq!(fault("a.parquet", b"PAR1\x15\x04\x15\0PAR1"), data_set("a Parquet"));
    assert_eq!(fault("a.arrow", b"ARROW1\0\0\xff\xff\xff\xffARROW1"), data_set("an Arrow"));
    assert_eq!(fault("a.arrow", b"\xff\xff\xff\xff\x10\0\0\0"), data_set("an Arrow"));
    for (name, contents, format, remedy) in [
        ("a.jsonl", &b"\x1f\x8b\x08\0"[..], "a gzip file", "decompress it by gunzip"),
        ("a.jsonl.gz", b"\x1f\x8b", "a gzip file", "decompress it by gunzip"),
        ("a.zst", b"\x28\xb5\x2f\xfd\x24", "a Zstandard file", "decompress it by zstd -d"),
        ("a.xz", b"\xfd7zXZ\0\0", "an xz file", "decompress it by unxz"),
        ("a.zip", b"PK\x03\x04", "a ZIP archive", "extract its files by unzip"),
    ] {
        assert_eq!(fault(name, contents), format!("is {format} and no text; {remedy}, or leave it out"));
    }
    for text in ["PAR1S", "ARROW1 and ARROW2", "P", "PK"] {
        assert_eq!(documents(&Room::with("a.txt", text).prepare().unwrap()), [text]);
    }
}

#[cfg(unix)]
#[test]
fn a_file_of_gzip_is_recognised() {
    let room = Room::with("a.jsonl", "{\"text\": \"a\"}\n");
    let Ok(packed) = Command::new("gzip").args(["-c", room.source.to_str().unwrap()]).output() else { return };
    let error = Room::with("a.jsonl", packed.stdout).prepare().unwrap_err();
    assert!(matches!(error, TokenError::NotText { format: "a gzip file", .. }), "{error:?}");
}
