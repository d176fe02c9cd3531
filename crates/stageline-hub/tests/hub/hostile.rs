//! Tests that a model folder with wrong files, names or JSON is refused with the file and the reason.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use stageline_hub::{Dtype, FolderError, ModelFolder};

use crate::toy::{self, INDEX, INDEX_TEXT, SHARDS, SINGLE};

/// Changes a valid model folder with two weights files by the closure `change`, and asserts that the folder then cannot
/// be opened. The error message must contain all texts of `parts`. Returns the error.
fn assert_refused(change: impl FnOnce(&Path), parts: &[&str]) -> FolderError {
    let dir = toy::sharded();
    ModelFolder::open(dir.path()).unwrap();
    change(dir.path());
    let error = toy::refused(dir.path());
    toy::assert_says(&error, parts);
    error
}

/// Asserts that a model folder with two weights files cannot be opened if its index has the text `index`. The error
/// message must contain all texts of `parts`. Returns the error.
fn assert_index_refused(index: &str, parts: &[&str]) -> FolderError {
    assert_refused(|dir| fs::write(dir.join(INDEX), index).unwrap(), parts)
}

#[test]
fn a_path_that_does_not_exist_or_is_a_file_is_refused() {
    let dir = toy::sharded();
    toy::assert_says(&toy::refused(&dir.path().join("nowhere\n")), &[r"nowhere\n does not exist", "hf download"]);
    toy::assert_says(&toy::refused(&dir.path().join(INDEX)), &[INDEX, "is not a folder"]);
}

#[test]
fn a_folder_without_weights_is_refused() {
    let dir = toy::folder(&[]);
    let error = toy::refused(dir.path());
    toy::assert_says(&error, &[dir.path().to_str().unwrap(), "neither", INDEX, SINGLE, "download"]);
}

#[test]
fn pickled_weights_are_refused_with_the_way_to_convert_them() {
    for name in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
        let dir = toy::folder(&[("config.json", b"{}"), (name, b"PK")]);
        toy::assert_says(&toy::refused(dir.path()), &[name, "pickled", "save_pretrained", "safe_serialization=True"]);
    }
}

#[test]
fn a_folder_with_an_adapter_is_refused() {
    let parts = ["adapter_config.json", "is not added to the weights", "merge_and_unload"];
    let error = assert_refused(|dir| fs::write(dir.join("adapter_config.json"), "{}").unwrap(), &parts);
    assert!(matches!(error, FolderError::Adapter { .. }));
}

#[test]
fn a_missing_file_is_refused() {
    let parts = [SHARDS[1], "is missing", "model.safetensors.index.json names"];
    let error = assert_refused(|dir| fs::remove_file(dir.join(SHARDS[1])).unwrap(), &parts);
    assert!(matches!(error, FolderError::MissingFile { .. }));
    let dir = toy::folder(&[("config.json", b"{}")]);
    symlink("no blob", dir.path().join(SINGLE)).unwrap();
    toy::assert_says(&toy::refused(dir.path()), &[SINGLE, "is missing"]);
}

#[test]
fn a_folder_without_a_configuration_has_weights_and_no_configuration() {
    let dir = toy::sharded();
    let tensors = ModelFolder::open(dir.path()).unwrap().tensors().len();
    fs::remove_file(dir.path().join("config.json")).unwrap();
    let folder = ModelFolder::open(dir.path()).unwrap();
    assert_eq!(folder.tensors().len(), tensors);
    let error = folder.config().unwrap_err();
    toy::assert_says(&error, &["config.json", "is missing", "it describes the model"]);
    symlink("no blob", dir.path().join("config.json")).unwrap();
    toy::assert_says(&toy::refused(dir.path()), &["config.json", "is missing", "a link in the folder leads to it"]);
}

#[test]
fn a_folder_in_the_place_of_a_file_is_refused() {
    for name in ["config.json", INDEX, SHARDS[0]] {
        let change = |dir: &Path| {
            fs::remove_file(dir.join(name)).unwrap();
            fs::create_dir(dir.join(name)).unwrap();
        };
        assert_refused(change, &[name, "is not a file"]);
    }
}

#[test]
fn a_configuration_that_is_no_json_object_is_refused() {
    for text in ["", "{", "{\"a\": 1,}", "\u{1b}", "{} {}"] {
        let change = |dir: &Path| fs::write(dir.join("config.json"), text).unwrap();
        assert_refused(change, &["config.json is malformed: it is not valid JSON"]);
    }
    for text in ["[]", "7", "\"{}\"", "null"] {
        let change = |dir: &Path| fs::write(dir.join("config.json"), text).unwrap();
        assert_refused(change, &["config.json is malformed: it is JSON, but not an object"]);
    }
    assert_refused(|dir| fs::write(dir.join("config.json"), "[".repeat(1_000)).unwrap(), &["recursion limit"]);
}

#[test]
fn a_json_file_that_is_too_long_is_refused() {
    for name in ["config.json", INDEX] {
        let change = |dir: &Path| {
            fs::OpenOptions::new().write(true).open(dir.join(name)).unwrap().set_len((64 << 20) + 7).unwrap();
        };
        assert_refused(change, &[name, "has 67108871 bytes", "at most 67108864"]);
    }
}

#[test]
fn a_pointer_of_git_lfs_is_refused_with_the_command_that_gets_the_file() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\n";
    let change = |dir: &Path| fs::write(dir.join(SHARDS[0]), pointer).unwrap();
    assert_refused(change, &[SHARDS[0], "is a pointer of Git LFS", "git lfs pull"]);
}

#[test]
fn an_index_of_another_form_is_refused() {
    for index in ["{}", "[]", r#"{"weight_map": {"w": 7}}"#, r#"{"weight_map": {}}"#, r#"{"weight_map": "\u001b[2J"}"#]
    {
        assert_index_refused(index, &[INDEX, "is malformed: "]);
    }
}

#[test]
fn an_index_that_names_files_outside_the_folder_is_refused() {
    let outside = toy::folder(&[("x.safetensors", &toy::weights(&[("w", Dtype::F32, vec![1], toy::f32s(&[1.0]))]))]);
    let absolute = outside.path().join("x.safetensors");
    let names = ["../x.safetensors", "a/../../x.safetensors", "./x.safetensors", "..", ".", "", "x\u{0}.safetensors"];
    for name in names.into_iter().chain([absolute.to_str().unwrap(), r"..\x.safetensors", "C:x.safetensors"]) {
        let index = serde_json::json!({ "metadata": {}, "weight_map": { "w": name } }).to_string();
        let error = assert_index_refused(&index, &[INDEX, "names the file", "`w`", "not a plain name"]);
        assert!(matches!(error, FolderError::FileName { file, .. } if file == name));
    }
    let index = INDEX_TEXT.replace(SHARDS[1], "pytorch_model-00002.bin");
    assert_index_refused(&index, &["`pytorch_model-00002.bin`", "ends with .safetensors"]);
}

#[test]
fn an_index_that_names_a_missing_file_is_refused() {
    let index = INDEX_TEXT.replace(SHARDS[1], "\\u202ex\\u0007.safetensors");
    assert_index_refused(&index, &[r"\u{202e}x\u{7}.safetensors is missing", "names it"]);
}

#[test]
fn an_index_that_lists_a_tensor_for_the_wrong_file_is_refused() {
    let error = assert_index_refused(
        &INDEX_TEXT.replace("h.0.weight", "h.0.w\\n"),
        &[SHARDS[0], r"lacks the tensor `h.0.w\n`"],
    );
    assert!(matches!(error, FolderError::NotInFile { tensor, .. } if tensor == "h.0.w\n"));
    let moved = INDEX_TEXT.replacen(SHARDS[0], SHARDS[1], 1);
    assert_index_refused(&moved, &[SHARDS[1], "lacks the tensor `h.0.weight`"]);
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let change = |dir: &Path| _ = fs::copy(dir.join(SHARDS[0]), dir.join(SHARDS[1])).unwrap();
    let error = assert_refused(change, &["twice", SHARDS[0], SHARDS[1]]);
    assert!(matches!(error, FolderError::Twice { tensor, .. } if tensor.starts_with("h.")));
}
