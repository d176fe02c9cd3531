//! Tests hostile manifests and files with correct hashes, as an attacker who knows the format would write them.

use std::fs;

use serde_json::{Value, json};

use crate::target::{Target, pretty, sha256, shard};
use crate::toy;

/// A test case for a manifest that must be refused: the JSON pointer of the value to replace or add, the invalid value,
/// and the expected start of the error message.
type WrongValue = (&'static str, Value, String);

fn files() -> Vec<WrongValue> {
    let names = [
        "/etc/passwd",
        "../000001-step-10/head.safetensors",
        "optimizer/../head.safetensors",
        "./head.safetensors",
        "optimizer\\head.safetensors",
        "head.safetensors/",
        "",
        "manifest.json",
    ];
    let foreign = |name| ("/files/1/name", json!(name), format!("lists the file `{name}`, to which no tensor belongs"));
    let twice = ("/files/1/name", json!("blocks.0.safetensors"), "lists the file `blocks.0.safetensors` twice".into());
    names.into_iter().map(foreign).chain([twice]).collect()
}

/// Returns test cases of manifests to refuse: a tensor in a wrong file, or in a file that the manifest does not list.
fn places() -> Vec<WrongValue> {
    let elsewhere = |name| {
        let message = format!("places the tensor `head.w` in `{name}`; it belongs in `head.safetensors`");
        ("/parameters/head.w/file", json!(name), message)
    };
    let tail = json!({"file": "tail.safetensors", "dtype": "U8", "shape": []});
    let message = "does not list the file `tail.safetensors`, which this checkpoint must have".into();
    let names = ["../../x", "/etc/passwd", "blocks.0.safetensors", "optimizer/head.safetensors"];
    names.into_iter().map(elsewhere).chain([("/parameters/tail.w", tail, message)]).collect()
}

fn sizes() -> Vec<WrongValue> {
    let huge = json!(u64::MAX);
    let index = "model.safetensors.index.json";
    let max = "18446744073709551615";
    let total = |file, found, tensors: u64| {
        format!("gives the file `{file}` {found} bytes, which is impossible with {tensors} bytes of tensors")
    };
    let shape = |dtype, shape| {
        format!(
            "gives the tensor `head.w` the type {dtype} and the shape {shape}, whose size overflows or is not a whole number of bytes"
        )
    };
    let part = json!({"file": "head.safetensors", "dtype": "F4", "shape": [3]});
    let large = json!({"file": "head.safetensors", "dtype": "U8", "shape": [1u64 << 60]});
    vec![
        ("/files/1/bytes", huge.clone(), total("head.safetensors", max, 4)),
        ("/files/1/bytes", json!(11), total("head.safetensors", "11", 4)),
        ("/files/1/bytes", json!(100_000_013), total("head.safetensors", "100000013", 4)),
        ("/files/4/bytes", huge.clone(), total(index, max, 0)),
        ("/files/1/bytes", json!(-1), "is malformed: invalid value: integer `-1`, expected u64".into()),
        ("/parameters/head.w/shape", json!([huge, 2]), shape("BF16", "[18446744073709551615, 2]")),
        ("/parameters/head.w", part, shape("F4", "[3]")),
        ("/parameters/head.x", large, total("head.safetensors", "108", (1 << 60) + 4)),
    ]
}

/// Returns test cases of manifests to refuse: malformed hashes, unknown fields, wrong types, a reserved name and an
/// unknown version.
fn forms() -> Vec<WrongValue> {
    let reserved = json!({"file": "__metadata__.safetensors", "dtype": "U8", "shape": []});
    let wrong_values = [
        ("/files/1/sha256", json!("AB"), "the SHA-256 of `head.safetensors` is `AB`"),
        ("/files/1/sha256", json!("A".repeat(64)), "the SHA-256 of `head.safetensors` is `AAAA"),
        ("/files/1/more", json!(1), "unknown field `more`, expected one of `name`, `bytes`, `sha256`"),
        ("/parameters/head.w/dtype", json!("F33"), "unknown variant `F33`, expected one of"),
        ("/parameters/head.w/more", json!(1), "unknown field `more`, expected one of `file`, `dtype`, `shape`"),
        ("/parameters/__metadata__", reserved, "no tensor can be named `__metadata__`"),
        ("/more", json!(1), "unknown field `more`, expected one of"),
        ("/progress/more", json!(1), "unknown field `more`, expected one of `steps`, `optimizer_steps`, `loss_scale`"),
        ("/progress/steps", json!("many"), "invalid type: string \"many\", expected u64"),
        ("/progress/loss_scale/scale", json!("x"), "invalid value: string \"x\", expected a number or a string of one"),
        ("/version", json!(0), "there is no format 0"),
        ("/version", json!("1"), "invalid type: string \"1\", expected u64"),
    ];
    wrong_values.into_iter().map(|(place, value, message)| (place, value, format!("is malformed: {message}"))).collect()
}

fn scales() -> Vec<WrongValue> {
    let scale = |(value, shown)| {
        let message = format!("has the loss scale {shown}, which is not a positive number");
        ("/progress/loss_scale/scale", value, message)
    };
    [(json!("NaN"), "NaN"), (json!("inf"), "inf"), (json!(0), "0"), (json!(-1.5), "-1.5")].map(scale).into()
}

fn steps() -> Vec<WrongValue> {
    let most = 1u64 << 53;
    let steps = |steps: u64| {
        (
            "/progress/steps",
            json!(steps),
            format!("says that it was saved after {steps} steps, more than the 9007199254740992 that are possible"),
        )
    };
    let optimizer = |place, value: u64, optimizer_steps: u64, steps: u64| {
        (place, json!(value), format!("has {optimizer_steps} optimizer steps, but only {steps} steps in all"))
    };
    vec![
        steps(most + 1),
        steps(u64::MAX),
        optimizer("/progress/steps", 9, 10, 9),
        optimizer("/progress/optimizer_steps", 21, 21, 20),
        optimizer("/progress/optimizer_steps", u64::MAX, u64::MAX, 20),
    ]
}

fn frozen() -> Vec<WrongValue> {
    let hash = "00".repeat(32);
    let entry = |sha256: &str| json!({"dtype": "F32", "shape": [1, 2], "sha256": sha256});
    let digits = |sha256: &str| {
        let message = "is malformed: a SHA-256 is not 64 lowercase hexadecimal digits";
        ("/frozen/tail.w", entry(sha256), message.to_owned())
    };
    let both = "is malformed: `head.w` has values, and a hash in their place";
    vec![digits(""), digits(&hash[2..]), digits(&"AA".repeat(32)), ("/frozen/head.w", entry(&hash), both.to_owned())]
}

#[test]
fn every_wrong_value_in_a_manifest_is_refused_with_its_reason() {
    let target = Target::new();
    let wrong_values = [files(), places(), sizes(), forms(), steps(), scales(), frozen()].concat();
    let (tried, mut refused) = (wrong_values.len(), 0);
    for (place, value, expected) in wrong_values {
        let mut manifest = target.manifest.clone();
        let (parent, key) = place.rsplit_once('/').unwrap();
        match manifest.pointer_mut(parent).unwrap() {
            Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
            object => object[key] = value,
        }
        target.seal(&pretty(&manifest));
        let damage = target.damage("manifest.json");
        assert!(damage.starts_with(&expected), "{place}: {damage}");
        refused += 1;
    }
    assert_eq!((tried, refused), (47, 47));
    target.seal(&pretty(&target.manifest));
    assert_eq!(toy::read(&target.path).unwrap(), toy::checkpoint(20), "the seal of this test is correct");
}

#[test]
fn sizes_that_overflow_when_they_are_added_are_refused() {
    let mut target = Target::new();
    for i in 0..9 {
        let entry = json!({"file": "head.safetensors", "dtype": "U8", "shape": [(1u64 << 61) - 1]});
        target.manifest["parameters"][format!("head.{}", char::from(b'a' + i))] = entry;
    }
    target.seal(&pretty(&target.manifest));
    let expected = "gives the tensor `head.i` the type U8 and the shape [2305843009213693951], whose size overflows or is not a whole number of bytes";
    assert_eq!(target.damage("manifest.json"), expected);
}

#[test]
fn a_missing_field_or_file_of_a_manifest_is_named() {
    let target = Target::new();
    let mut manifest = target.manifest.clone();
    manifest["files"].as_array_mut().unwrap().pop();
    target.seal(&pretty(&manifest));
    let expected = "does not list the file `model.safetensors.index.json`, which this checkpoint must have";
    assert_eq!(target.damage("manifest.json"), expected);
    // The field `frozen` is optional: a checkpoint that contains all values lacks it.
    for field in target.manifest.as_object().unwrap().keys().filter(|field| *field != "frozen") {
        let mut manifest = target.manifest.clone();
        manifest.as_object_mut().unwrap().remove(field);
        target.seal(&pretty(&manifest));
        let damage = target.damage("manifest.json");
        assert!(damage.starts_with(&format!("is malformed: missing field `{field}`")), "{damage}");
    }
}

#[test]
fn text_in_another_format_is_refused() {
    let target = Target::new();
    let good = pretty(&target.manifest);
    let deep = |depth| good.replace("\"1f1b\"", &("[".repeat(depth) + &"]".repeat(depth)));
    let head = "\"head.w\": {\"file\": \"head.safetensors\", \"dtype\": \"BF16\", \"shape\": [1, 2]},";
    let twice = good.replace("\"parameters\": {", &format!("\"parameters\": {{{head}"));
    let run_twice = good.replace("\"run\": {", "\"run\": {\"seed\": 8,");
    for (text, expected) in [
        (deep(200), "recursion limit exceeded"),
        (deep(1_000_000), "recursion limit exceeded"),
        (twice, "`head.w` appears twice"),
        (run_twice, "`seed` appears twice"),
        ("{\n}".to_owned(), "missing field `version`"),
        ("\n}".to_owned(), "expected value"),
        (good.clone() + "\n}", "trailing characters"),
        (good.replace("\"version\": 1", "\"version\": 1,\n  \"version\": 2"), "duplicate field `version`"),
    ] {
        target.seal(&text);
        let damage = target.damage("manifest.json");
        assert!(damage.starts_with("is malformed: ") && damage.contains(expected), "{damage}");
    }
    target.seal(&deep(100));
    toy::read(&target.path).unwrap();
}

#[test]
fn a_newer_format_is_distinguished_from_damage_whatever_its_contents() {
    let target = Target::new();
    for (text, found) in [
        ("{\n  \"version\": 2\n}".to_owned(), "2"),
        ("{\n  \"tensors\": [1],\n  \"version\": 18446744073709551615\n}".to_owned(), "18446744073709551615"),
        (pretty(&target.manifest).replace("\"version\": 1", "\"version\": 2"), "2"),
    ] {
        target.seal(&text);
        let message = toy::read(&target.path).unwrap_err().to_string();
        let expected = format!(
            "{}/manifest.json was written by a newer stageline: its format is {found}, and this version reads formats up \
             to 1; resume with the newer stageline",
            target.path.display()
        );
        assert_eq!(message, expected);
    }
}

#[test]
fn files_with_another_hash_or_size_than_in_the_manifest_are_refused() {
    let mut target = Target::new();
    target.manifest["files"][1]["sha256"] = "0".repeat(64).into();
    target.seal(&pretty(&target.manifest));
    let found = sha256(&fs::read(target.path.join("head.safetensors")).unwrap());
    let expected = format!("was changed: its SHA-256 is {found}, but {} was recorded", "0".repeat(64));
    assert_eq!(target.damage("head.safetensors"), expected);

    let tensors = 1u64 << 50;
    target.manifest["parameters"]["head.w"]["shape"] = json!([tensors / 2]);
    target.manifest["files"][1]["bytes"] = (tensors + 96).into();
    target.seal(&pretty(&target.manifest));
    let expected = format!("has 108 bytes, but the manifest lists {}", tensors + 96);
    assert_eq!(target.damage("head.safetensors"), expected);
}

#[test]
fn wrong_headers_are_refused_with_their_reason() {
    let mut target = Target::new();
    let head = |dtype: &str, shape: Value| json!({"dtype": dtype, "shape": shape, "data_offsets": [0, 4]});
    let info =
        |shape: u64, start: u64, end: u64| json!({"dtype": "U8", "shape": [shape], "data_offsets": [start, end]});
    let max = u64::MAX;
    // The last of nine tensors ends at offset 2^64 - 1, so that any addition to this offset overflows.
    let part = (1u64 << 61) - 1;
    let mut last = json!({"head.w": info(7, 8 * part, 8 * part + 7)});
    (0..8).for_each(|i| last[i.to_string()] = info(part, i * part, (i + 1) * part));
    let json = |header: Value| shard(header.to_string().as_bytes());
    let length = |length: u64| [&length.to_le_bytes()[..], &[b' '; 92]].concat();
    let cases = [
        (length(max), "is malformed: its header has 18446744073709551615 bytes"),
        (length(max - 7), "is malformed: its header has 18446744073709551608 bytes"),
        (length(93), "is malformed: its header has 93 bytes"),
        (length(0), "is malformed: EOF while parsing a value"),
        (vec![b' '; 12], "is malformed: its header has 2314885530818453536 bytes"),
        (shard("[".repeat(100_000).as_bytes()), "is malformed: invalid type: sequence"),
        (shard(format!("{{\"head.w\": {}", "[".repeat(100_000)).as_bytes()), "is malformed: recursion limit exceeded"),
        (json(last), "is malformed: its header describes 18446744073709551615 bytes of tensors, but 4 follow it"),
        (json(json!({"head.w": head("BF16", json!([max, 2]))})), "is malformed: overflow"),
        (json(json!({"head.w": info(4, 4, 0)})), "is malformed: invalid offset for tensor `head.w`"),
        (json(json!({"head.v": head("BF16", json!([1, 2]))})), "lacks the tensor `head.w`"),
        (
            json(json!({"head.w": head("BF16", json!([1, 2])), "x": info(0, 4, 4)})),
            "has 2 tensors, but the manifest lists 1",
        ),
        (
            json(json!({"head.w": head("F16", json!([1, 2]))})),
            "has the tensor `head.w` as F16 [1, 2], but the manifest has BF16 [1, 2]",
        ),
        (
            json(json!({"head.w": head("BF16", json!([2]))})),
            "has the tensor `head.w` as BF16 [2], but the manifest has BF16 [1, 2]",
        ),
    ];
    for (contents, expected) in cases {
        target.put("head.safetensors", &contents);
        let damage = target.damage("head.safetensors");
        assert!(damage.starts_with(expected), "{expected}: {damage}");
    }
    target.put("head.safetensors", &json(json!({"head.w": head("BF16", json!([1, 2]))})));
    toy::read(&target.path).unwrap();
}

#[test]
fn a_nan_is_refused_although_the_hash_is_correct() {
    let mut target = Target::new();
    for file in ["blocks.0.safetensors", "optimizer/blocks.0.safetensors"] {
        let good = fs::read(target.path.join(file)).unwrap();
        let mut contents = good.clone();
        let end = contents.len();
        contents[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        target.put(file, &contents);
        let damage = target.damage(file);
        assert!(damage.starts_with("has NaN in the tensor `blocks.0.up.weight"), "{damage}");
        assert!(damage.ends_with(", at index 5"), "{damage}");
        target.put(file, &good);
    }
    assert_eq!(toy::read(&target.path).unwrap(), toy::checkpoint(20));
}

#[test]
fn an_index_of_other_parameters_is_refused() {
    let mut target = Target::new();
    let index = "model.safetensors.index.json";
    let good: Value = serde_json::from_slice(&fs::read(target.path.join(index)).unwrap()).unwrap();
    let (mut total, mut place) = (good.clone(), good.clone());
    total["metadata"]["total_size"] = 41.into();
    place["weight_map"]["head.w"] = "/etc/passwd".into();
    for other in [total, place] {
        target.put(index, other.to_string().as_bytes());
        assert_eq!(target.damage(index), "does not list the parameters as the manifest does");
    }
    target.put(index, b"{}");
    assert!(target.damage(index).starts_with("is malformed: missing field `metadata`"));
    target.put(index, good.to_string().as_bytes());
    assert_eq!(toy::read(&target.path).unwrap(), toy::checkpoint(20));
}
