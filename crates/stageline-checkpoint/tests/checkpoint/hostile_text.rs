//! Tests text in a checkpoint, such as control characters, that would do harm on a terminal.
//!
//! Wherever a file contains text, such text is refused with a message that is safe to print.

use std::fs;

use serde_json::{Value, json};
use stageline_checkpoint::{CheckpointError, Dtype, Tensor};

use crate::error_texts::texts;
use crate::target::{Target, pretty, shard};
use crate::{error_texts, toy};

/// Asserts that a changed checkpoint is refused with an error that names `file`, one of its files. `toy::read` checks
/// that the message is safe to print.
fn refused(target: &Target, file: &str, place: &str) {
    let damage = target.damage(file);
    assert!(!damage.starts_with("unexpected: "), "{place}: {damage:.2000}");
}

fn empty() -> Value {
    json!({"file": "head.safetensors", "dtype": "U8", "shape": [0]})
}

fn put(manifest: &mut Value, pointer: &str, value: Value) {
    *manifest.pointer_mut(pointer).unwrap_or_else(|| panic!("there is no {pointer}")) = value;
}

#[test]
fn hostile_names_of_tensors_and_files_are_refused() {
    let target = Target::new();
    for text in texts() {
        let with = |place: &str, change: &dyn Fn(&mut Value)| {
            let mut manifest = target.manifest.clone();
            change(&mut manifest);
            target.seal(&pretty(&manifest));
            refused(&target, "manifest.json", place);
        };
        let uncounted = json!({"file": "head.safetensors", "dtype": "F4", "shape": [3]});
        with("a parameter elsewhere", &|manifest| manifest["parameters"][&text] = empty());
        with("a state elsewhere", &|manifest| manifest["optimizer"][format!("{text}/time")] = empty());
        with("a shape", &|manifest| manifest["parameters"][format!("head.{text}")] = uncounted.clone());
        with("a place", &|manifest| put(manifest, "/parameters/head.w/file", json!(text)));
        with("a file", &|manifest| put(manifest, "/files/1/name", json!(text)));
        with("a hash", &|manifest| put(manifest, "/files/1/sha256", json!(text)));
        with("a file and its hash", &|manifest| {
            put(manifest, "/files/1/name", json!(text));
            put(manifest, "/files/1/sha256", json!(text));
        });
        with("a type", &|manifest| put(manifest, "/parameters/head.w/dtype", json!(text)));
    }
}

#[test]
fn unknown_fields_with_hostile_names_are_refused() {
    let target = Target::new();
    for text in texts() {
        for parent in [
            "",
            "/progress",
            "/progress/loss_scale",
            "/files/1",
            "/parameters/head.w",
            "/optimizer/head.w~1momentum.moment_1",
        ] {
            let mut manifest = target.manifest.clone();
            manifest.pointer_mut(parent).unwrap()[&text] = json!(1);
            target.seal(&pretty(&manifest));
            refused(&target, "manifest.json", parent);
        }
    }
}

#[test]
fn hostile_values_of_the_wrong_type_are_refused() {
    let target = Target::new();
    let places = [
        "/version",
        "/progress",
        "/progress/steps",
        "/progress/optimizer_steps",
        "/progress/loss_scale",
        "/progress/loss_scale/scale",
        "/progress/loss_scale/good_steps",
        "/run",
        "/files",
        "/files/1",
        "/files/1/bytes",
        "/parameters",
        "/parameters/head.w",
        "/parameters/head.w/dtype",
        "/parameters/head.w/shape",
        "/parameters/head.w/shape/0",
        "/optimizer",
    ];
    for text in texts() {
        for place in places {
            let object = if place == "/run" { json!(1) } else { json!({ text.as_str(): 1 }) };
            for value in [json!(text), object] {
                let mut manifest = target.manifest.clone();
                put(&mut manifest, place, value);
                target.seal(&pretty(&manifest));
                refused(&target, "manifest.json", place);
            }
        }
        for place in ["/stageline", "/files/1/name", "/files/1/sha256", "/parameters/head.w/file"] {
            let mut manifest = target.manifest.clone();
            put(&mut manifest, place, json!({ text.as_str(): text }));
            target.seal(&pretty(&manifest));
            refused(&target, "manifest.json", place);
        }
    }
}

#[test]
fn very_long_numbers_are_refused() {
    let target = Target::new();
    let good = pretty(&target.manifest);
    let digits = "9".repeat(1 << 20);
    let small = format!("-0.{}1", "0".repeat(400));
    for number in [&digits, &format!("-{digits}"), &format!("1.{digits}"), &format!("1e{digits}"), &small, "-1e308"] {
        for (before, field) in [
            ("\"version\": 1", "version"),
            ("\"steps\": 20", "steps"),
            ("\"good_steps\": 6", "good_steps"),
            ("\"scale\": 65536.0", "scale"),
        ] {
            assert!(good.contains(before), "{before}");
            target.seal(&good.replace(before, &format!("\"{field}\": {number}")));
            // The number 1.999... is a valid loss scale, however long its fraction is.
            if !(field == "scale" && number.starts_with("1.")) {
                refused(&target, "manifest.json", field);
            }
        }
    }
    let mut manifest = target.manifest.clone();
    put(&mut manifest, "/parameters/head.w/shape", json!(vec![u32::MAX; 100_000]));
    target.seal(&pretty(&manifest));
    refused(&target, "manifest.json", "a shape");
}

#[test]
fn hostile_keys_that_appear_twice_are_refused() {
    let target = Target::new();
    let good = pretty(&target.manifest);
    for text in texts() {
        let key = json!(text);
        for (field, value) in [("run", json!(1)), ("parameters", empty()), ("optimizer", empty())] {
            let twice = format!("\"{field}\": {{{key}: {value}, {key}: {value},");
            target.seal(&good.replace(&format!("\"{field}\": {{"), &twice));
            refused(&target, "manifest.json", field);
        }
        target.seal(&good.replace("\"version\"", &format!("{key}: 1, {key}: 2, \"version\"")));
        refused(&target, "manifest.json", "top");
    }
}

#[test]
fn manifests_that_are_not_json_are_refused() {
    let target = Target::new();
    let good = fs::read_to_string(target.path.join("manifest.json")).unwrap();
    for text in texts() {
        for object in [format!("{text}\n}}"), format!("{{\"{text}\n}}"), format!("{{\"version\": {text}\n}}")] {
            target.seal(&object);
            refused(&target, "manifest.json", "sealed");
        }
        let mut digits = String::new();
        for char in text.chars().cycle().take(64) {
            if digits.len() + char.len_utf8() <= 64 {
                digits.push(char);
            }
        }
        digits += &"x".repeat(64 - digits.len());
        let (before, _) = good.split_at(good.len() - "\"\n}\n".len() - 64);
        fs::write(target.path.join("manifest.json"), format!("{before}{digits}\"\n}}\n")).unwrap();
        assert!(target.damage("manifest.json").starts_with("was changed: "), "a seal of {digits:?}");
        fs::write(target.path.join("manifest.json"), &text).unwrap();
        refused(&target, "manifest.json", "not sealed");
    }
    fs::write(target.path.join("manifest.json"), [b"\x1b[2J\xff\x9b", good.as_bytes()].concat()).unwrap();
    refused(&target, "manifest.json", "not UTF-8");
}

#[test]
fn hostile_versions_are_refused() {
    let target = Target::new();
    for text in texts() {
        for version in [json!(text), json!([text]), json!({ text.as_str(): 1 }), json!(-1), json!(0), json!(1.5)] {
            target.seal(&pretty(&json!({"version": version, text.as_str(): text})));
            refused(&target, "manifest.json", "version");
        }
        target.seal(&pretty(&json!({"version": 2, text.as_str(): text})));
        assert!(matches!(toy::read(&target.path), Err(CheckpointError::Newer { found: 2, .. })));
    }
}

#[test]
fn hostile_headers_of_tensor_files_are_refused() {
    let mut target = Target::new();
    let offsets = |start: u64, end: u64| json!({"dtype": "U8", "shape": [4], "data_offsets": [start, end]});
    for text in texts() {
        let key = text.as_str();
        let info = |field: &str, value: Value| {
            let mut info = json!({"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]});
            info[field] = value;
            json!({ "head.w": info })
        };
        let headers = [
            json!(text),
            json!([text]),
            json!({ key: 1 }),
            json!({ key: text }),
            json!({ key: offsets(4, 0) }),
            json!({ key: offsets(1, 5) }),
            json!({ key: offsets(0, 4) }),
            json!({ key: { "dtype": text, "shape": [4], "data_offsets": [0, 4] } }),
            json!({ "__metadata__": text }),
            json!({ "__metadata__": { key: 1 } }),
            info("dtype", json!(text)),
            info("shape", json!(text)),
            info("shape", json!([text])),
            info("data_offsets", json!(text)),
            info("data_offsets", json!({ key: 0 })),
        ];
        for header in headers {
            target.put("head.safetensors", &shard(header.to_string().as_bytes()));
            refused(&target, "head.safetensors", "header");
        }
        let twice = format!("{{{0}: {1}, {0}: {1}}}", json!(text), offsets(0, 4));
        for header in [text.as_bytes(), twice.as_bytes(), b"\x1b[2J\xff\x9b"] {
            target.put("head.safetensors", &shard(header));
            refused(&target, "head.safetensors", "header");
        }
    }
    let shape = [vec![1; 300_000], vec![2]].concat();
    let info = json!({"dtype": "BF16", "shape": shape, "data_offsets": [0, 4]});
    target.put("head.safetensors", &shard(json!({ "head.w": info }).to_string().as_bytes()));
    assert!(target.damage("head.safetensors").starts_with("has the tensor `head.w` as BF16 [1, 1, "));
}

#[test]
fn hostile_names_of_tensors_that_differ_in_their_file_are_refused() {
    for text in texts() {
        let mut target = Target::new();
        let name = format!("head.{text}");
        let header = |dtype: &str, shape: &[u64]| {
            let head = json!({"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]});
            let info = json!({"dtype": dtype, "shape": shape, "data_offsets": [0, 4]});
            json!({ "head.w": head, name.as_str(): info }).to_string()
        };
        target.manifest["parameters"]["head.w"]["shape"] = json!([0]);
        target.manifest["parameters"][&name] = json!({"file": "head.safetensors", "dtype": "F32", "shape": []});
        let without = json!({"head.w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).to_string();
        let mut nan = shard(header("F32", &[]).as_bytes());
        let data = nan.len() - 4;
        nan[data..].fill(0xff);
        for contents in [shard(without.as_bytes()), shard(header("U8", &[4]).as_bytes()), nan] {
            target.put("head.safetensors", &contents);
            refused(&target, "head.safetensors", "a tensor");
        }
    }
}

#[test]
fn hostile_indices_are_refused() {
    let mut target = Target::new();
    let index = "model.safetensors.index.json";
    for text in texts() {
        let (key, quoted) = (text.as_str(), json!(text));
        let objects = [
            json!(text),
            json!({ key: text }),
            json!({"metadata": text, "weight_map": {}}),
            json!({"metadata": {"total_size": text}, "weight_map": {}}),
            json!({"metadata": {"total_size": {key: text}}, "weight_map": {}}),
            json!({"metadata": {"total_size": 1}, "weight_map": text}),
            json!({"metadata": {"total_size": 1}, "weight_map": {key: 1}}),
            json!({"metadata": {"total_size": 1}, "weight_map": {key: text}}),
        ];
        let twice =
            format!("{{\"metadata\": {{\"total_size\": 1}}, \"weight_map\": {{{quoted}: \"\", {quoted}: \"\"}}}}");
        for contents in objects.iter().map(Value::to_string).chain([twice, text.clone()]) {
            target.put(index, contents.as_bytes());
            refused(&target, index, "index");
        }
    }
}

#[test]
fn hostile_checkpoints_are_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = toy::store(dir.path(), 1);
    for text in texts() {
        for tensor in [toy::f32s(&[], f32::NAN), Tensor::new(Dtype::U8, vec![9; 100_000], vec![].into())] {
            let mut checkpoint = toy::checkpoint(1);
            checkpoint.parameters.insert(text.clone(), tensor);
            error_texts::check(&store.save(&checkpoint).unwrap_err());
        }
        let mut checkpoint = toy::checkpoint(1);
        let key: String = text.chars().take(9).collect();
        let deep = (0..200).fold(json!(text), |inner, _| json!({ key.as_str(): inner }));
        checkpoint.run.insert(key, deep);
        error_texts::check(&store.save(&checkpoint).unwrap_err());
    }
}
