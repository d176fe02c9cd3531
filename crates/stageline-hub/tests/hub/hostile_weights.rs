//! Tests that a malformed weights file is refused with its name and the reason.

use stageline_hub::{Dtype, FolderError, ModelFolder};

use crate::toy::{self, SINGLE};

/// Asserts that a model folder cannot be opened if its weights file has the bytes `weights`. The error message must say
/// that the file is malformed, and contain all texts of `parts`.
#[track_caller]
fn assert_refused(weights: &[u8], parts: &[&str]) {
    let dir = toy::single(weights);
    let error = toy::refused(dir.path());
    assert!(matches!(error, FolderError::Malformed { .. }), "{error}");
    toy::assert_says(&error, &[SINGLE, "is malformed", "download it again"]);
    toy::assert_says(&error, parts);
}

#[test]
fn a_weights_file_cut_short_at_any_length_is_refused() {
    let whole = toy::weights(&[("w", Dtype::F32, vec![2], toy::f32s(&[1.0, 2.0]))]);
    for length in 0..whole.len() {
        let data = length.checked_sub(whole.len() - 8);
        let reason = match data {
            _ if length < 8 => format!("it has {length} bytes, too few"),
            Some(data) => format!("describes 8 bytes of tensors, but {data} follow"),
            None => "the file may be cut short".to_owned(),
        };
        assert_refused(&whole[..length], &[&reason]);
    }
    assert_refused(&[whole.as_slice(), b"x"].concat(), &["describes 8 bytes of tensors, but 9 follow"]);
}

#[test]
fn a_header_longer_than_the_file_or_the_format_is_refused() {
    for length in [3, 1 << 20, 100_000_001, u64::MAX / 2, u64::MAX - 7, u64::MAX] {
        let bytes = [&length.to_le_bytes()[..], b"{}"].concat();
        assert_refused(&bytes, &[&format!("header has {length} bytes"), "the 2 bytes after"]);
    }
}

#[test]
fn a_header_that_is_not_json_of_tensors_is_refused() {
    for header in ["", "{", "[]", r#"{"w": 7}"#, r#"{"w":{"dtype":"F99","shape":[],"data_offsets":[0,0]}}"#, "{}x"] {
        assert_refused(&toy::raw(header, b""), &["its safetensors header is invalid"]);
    }
    assert_refused(&[&4u64.to_le_bytes()[..], b"\xff\xfe{}"].concat(), &["its safetensors header is invalid"]);
    let negative = r#"{"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#;
    assert_refused(&toy::raw(negative, b"x"), &["its safetensors header is invalid"]);
}

#[test]
fn offsets_that_overlap_leave_gaps_or_overflow_are_refused() {
    let header = |first: &str, second: &str, shape: &str| {
        format!(
            r#"{{"a":{{"dtype":"F32","shape":[1],"data_offsets":{first}}},"b":{{"dtype":"F32","shape":{shape},"data_offsets":{second}}}}}"#
        )
    };
    for (first, second, shape) in [
        ("[0,4]", "[2,6]", "[1]"),
        ("[0,4]", "[0,4]", "[1]"),
        ("[0,4]", "[5,9]", "[1]"),
        ("[4,8]", "[8,12]", "[1]"),
        ("[4,0]", "[4,8]", "[1]"),
        ("[0,4]", "[4,8]", "[2]"),
        ("[0,4]", "[4,8]", "[4611686018427387905]"),
        ("[0,4]", "[4,18446744073709551615]", "[4611686018427387903]"),
        ("[0,4]", "[4,18446744073709551612]", "[4611686018427387902]"),
        ("[0,4]", "[4,8]", "[18446744073709551615,18446744073709551615]"),
    ] {
        assert_refused(&toy::raw(&header(first, second, shape), &[0; 8]), &["header"]);
    }
    toy::refused(toy::single(&toy::raw(&header("[0,4]", "[4,8]", "[1]"), &[0; 7])).path());
    ModelFolder::open(toy::single(&toy::raw(&header("[0,4]", "[4,8]", "[1]"), &[0; 8])).path()).unwrap();
}

#[test]
fn names_with_control_characters_are_escaped_and_long_names_are_cut() {
    let name = format!("\\u001b[2J\\n{}", "x".repeat(5_000));
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}}}"#);
    assert_refused(&toy::raw(&header, &[0; 5]), &[r"\u{1b}[2J\n", "..."]);

    let header = format!(r#"{{"{name}":{{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}}}"#);
    let dir = toy::single(&toy::raw(&header, &[0; 4]));
    let folder = ModelFolder::open(dir.path()).unwrap();
    let (name, _) = folder.tensors().next().unwrap();
    toy::check_text(&folder.tensor(name).unwrap().to_f32().unwrap_err());
    toy::check_text(&folder.expect(name, &[usize::MAX; 100]).unwrap_err());
    toy::check_text(&folder.tensor(&name.repeat(2)).unwrap_err());
}
