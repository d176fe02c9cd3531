//! Tests exports of a model to targets that cannot be written: each is refused before anything is written, and a check
//! leaves no trace.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use stageline_hub::{
    Dtype, FolderError, Layout, ModelFolder, Refusal, TensorLayout, check_export, check_file, copy_companions,
    read_file,
};

use crate::toy::{self, INDEX, SHARDS};

/// Returns a layout (names, types and shapes of tensors) for a new model with one tensor.
fn new() -> Layout {
    Layout::single([TensorLayout { name: "w".into(), dtype: Dtype::F32, shape: vec![1] }]).unwrap()
}

/// Asserts that `check_export` returns an error for the target folder `to`. The checked export would write weights with
/// the given layout, and copy the companions (files beside the weights) of the folder `from`. The error message must
/// contain all texts of `parts`. The check must not add or remove files in `to`. Returns the error.
#[track_caller]
fn assert_refused(layout: &Layout, from: &Path, to: &Path, parts: &[&str]) -> FolderError {
    let before = names(to);
    let error = check_export(layout, from, to).unwrap_err();
    toy::check_text(&error);
    toy::assert_says(&error, parts);
    assert_eq!(names(to), before);
    error
}

/// Returns the sorted names of the files in a folder; empty if the folder does not exist.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn export(from: &Path, to: &Path) -> Result<(), FolderError> {
    let folder = ModelFolder::open(from)?;
    folder.layout()?.write(to, |name| folder.tensor(name))?;
    copy_companions(from, to).map(drop)
}

#[test]
fn a_target_that_passes_the_check_is_unchanged_and_can_be_written() {
    let (source, root) = (toy::sharded(), toy::folder(&[("notes.txt", b"old")]));
    let layout = ModelFolder::open(source.path()).unwrap().layout().unwrap();
    for target in [root.path().join("new"), root.path().join("a/b/c"), root.path().join("x/../y"), root.path().into()] {
        check_export(&layout, source.path(), &target).unwrap();
        assert_eq!(names(root.path()), ["notes.txt"], "{}", target.display());
    }
    // An export of the same model may replace an older one.
    let target = root.path().join("new");
    export(source.path(), &target).unwrap();
    check_export(&layout, source.path(), &target).unwrap();
    export(source.path(), &target).unwrap();
    assert_eq!(ModelFolder::open(&target).unwrap().tensors().len(), 4);
}

#[test]
fn the_folder_of_the_source_is_refused_before_the_export() {
    let source = toy::sharded();
    let layout = ModelFolder::open(source.path()).unwrap().layout().unwrap();
    let same = source.path().join(".").join("..").join(source.path().file_name().unwrap());
    for layout in [layout, new()] {
        let error = assert_refused(&layout, source.path(), &same, &["give another folder"]);
        assert!(matches!(error, FolderError::Refused { reason: Refusal::Source, .. }));
    }
}

#[test]
fn weights_that_would_hide_the_new_ones_are_refused_before_the_export() {
    let source = toy::sharded();
    let layout = ModelFolder::open(source.path()).unwrap().layout().unwrap();
    let target = toy::single(b"");
    assert_refused(&layout, source.path(), target.path(), &["has `model.safetensors`", "remove it"]);
    let target = toy::sharded();
    assert_refused(&new(), source.path(), target.path(), &[&format!("has `{INDEX}`"), "remove it"]);
    let target = toy::folder(&[("adapter_config.json", b"{}")]);
    for layout in [layout, new()] {
        assert_refused(&layout, source.path(), target.path(), &["has `adapter_config.json`", "remove it"]);
    }
}

/// Tests that an export beside leftover shards of an earlier export is refused, even if no index lists these shards.
/// Some programs read all weights files of a folder.
#[test]
fn stale_weights_files_are_refused_before_the_export() {
    let source = toy::sharded();
    let layout = ModelFolder::open(source.path()).unwrap().layout().unwrap();
    let stale = "model-00003-of-00003.safetensors";
    let target = toy::folder(&[(stale, b""), (".hidden.safetensors", b"")]);
    for layout in [&layout, &new()] {
        let error = assert_refused(layout, source.path(), target.path(), &[&format!("has `{stale}`"), "remove it"]);
        assert!(matches!(error, FolderError::Refused { reason: Refusal::OtherWeights { .. }, .. }));
        let values = |_: &str| -> Result<Vec<f32>, FolderError> { panic!("no value is asked for") };
        layout.write(target.path(), values).unwrap_err();
    }
    fs::remove_file(target.path().join(stale)).unwrap();
    export(source.path(), target.path()).unwrap();
    fs::remove_file(target.path().join(INDEX)).unwrap();
    assert_refused(&new(), source.path(), target.path(), &[&format!("has `{}`", SHARDS[0]), "remove it"]);
}

#[test]
fn companions_of_another_model_are_refused_before_the_export() {
    const TEMPLATES: &str = "additional_chat_templates";
    for name in ["generation_config.json", "tokenizer.model", "additional_chat_templates/tools.jinja"] {
        let (source, target) = (toy::sharded(), toy::folder(&[("config.json", b"{}")]));
        let layout = ModelFolder::open(source.path()).unwrap().layout().unwrap();
        fs::create_dir(target.path().join(TEMPLATES)).unwrap();
        fs::write(target.path().join(TEMPLATES).join("notes.md"), "").unwrap();
        check_export(&layout, source.path(), target.path()).unwrap();
        fs::write(target.path().join(name), "old").unwrap();
        let part = format!("has `{name}`, which the new model lacks");
        let error = assert_refused(&layout, source.path(), target.path(), &[&part, "remove it"]);
        assert!(matches!(error, FolderError::Refused { reason: Refusal::OtherCompanion { .. }, .. }));
        copy_companions(source.path(), target.path()).unwrap_err();
        assert_eq!(fs::read(target.path().join("config.json")).unwrap(), b"{}");
        // A companion that the source folder has too may be replaced.
        fs::create_dir(source.path().join(TEMPLATES)).unwrap();
        fs::write(source.path().join(name), "new").unwrap();
        check_export(&layout, source.path(), target.path()).unwrap();
        assert_eq!(copy_companions(source.path(), target.path()).unwrap(), ["config.json", name]);
        assert_eq!(fs::read(target.path().join(name)).unwrap(), b"new");
    }
}

#[test]
fn a_target_that_is_no_folder_or_is_below_a_file_is_refused() {
    let (source, root) = (toy::sharded(), toy::folder(&[("file", b"old")]));
    symlink("nowhere", root.path().join("link")).unwrap();
    let file = root.path().join("file").display().to_string();
    for (target, named) in [("file", file.as_str()), ("file/below", &file), ("link", "link")] {
        let target = root.path().join(target);
        let error = assert_refused(&new(), source.path(), &target, &[named, "is not written: a file is there"]);
        assert!(matches!(error, FolderError::Refused { reason: Refusal::NotAFolder, .. }));
    }
    let long = root.path().join("new").join("x".repeat(300));
    let error = assert_refused(&new(), source.path(), &long, &["cannot create the folder"]);
    assert!(matches!(error, FolderError::Write { .. }));
    assert_eq!(names(root.path()), ["file", "link"]);
}

#[test]
fn a_folder_in_the_place_of_a_file_to_write_is_refused() {
    let source = toy::sharded();
    let layout = ModelFolder::open(source.path()).unwrap().layout().unwrap();
    for name in ["config.json", INDEX, SHARDS[1]] {
        let target = toy::folder(&[]);
        fs::create_dir(target.path().join(name)).unwrap();
        assert_refused(&layout, source.path(), target.path(), &[&format!("has a folder `{name}`"), "remove it"]);
        export(source.path(), target.path()).unwrap_err();
    }
}

#[test]
fn a_companion_that_cannot_be_read_is_refused_before_the_export() {
    let target = toy::folder(&[]);
    let source = toy::sharded();
    let tokenizer = source.path().join("tokenizer.json");
    symlink("no blob", &tokenizer).unwrap();
    assert_refused(&new(), source.path(), target.path(), &["tokenizer.json is missing"]);
    fs::remove_file(&tokenizer).unwrap();
    toy::pipe(&tokenizer);
    assert_refused(&new(), source.path(), target.path(), &["tokenizer.json is not a file"]);
}

#[test]
fn a_file_that_passes_the_check_is_unchanged() {
    let (source, root) = (toy::sharded(), toy::folder(&[("old", b"contents")]));
    let model = ModelFolder::open(source.path()).unwrap();
    fs::write(source.path().join("logits"), "").unwrap();
    for path in [root.path().join("new"), root.path().join("old"), source.path().join("logits")] {
        check_file(&path, Some(&model)).unwrap();
        check_file(&path, None).unwrap();
    }
    assert_eq!(names(root.path()), ["old"]);
    assert_eq!(fs::read(root.path().join("old")).unwrap(), b"contents");
}

#[test]
fn a_file_that_cannot_be_written_is_refused() {
    let root = toy::folder(&[("old", b"contents")]);
    toy::pipe(&root.path().join("pipe"));
    symlink("nowhere", root.path().join("link")).unwrap();
    let before = names(root.path());
    for (name, part) in [
        ("no/new", "its folder does not exist"),
        ("old/new", "its folder does not exist"),
        ("", "it is not a regular file"),
        ("pipe", "it is not a regular file"),
        ("link", "is a link to a file that does not exist"),
        ("new/", "cannot create"),
    ] {
        let error = check_file(root.path().join(name), None).unwrap_err();
        toy::check_text(&error);
        toy::assert_says(&error, &[part, root.path().to_str().unwrap()]);
    }
    let error = check_file("", None).unwrap_err();
    assert!(matches!(error, FolderError::Refused { reason: Refusal::NotAFile, .. }), "{error}");
    assert_eq!(names(root.path()), before);
}

#[test]
fn a_file_that_the_model_is_read_from_is_refused() {
    let (source, links) = (toy::sharded(), toy::folder(&[]));
    for name in ["config.json", INDEX, SHARDS[0], SHARDS[1]] {
        symlink(source.path().join(name), links.path().join(name)).unwrap();
    }
    for model in [source.path(), links.path()] {
        let model = ModelFolder::open(model).unwrap();
        for name in ["config.json", INDEX, SHARDS[0]] {
            let error = check_file(source.path().join(name), Some(&model)).unwrap_err();
            toy::check_text(&error);
            toy::assert_says(&error, &[name, "the model is read from this file; give another file"]);
            assert!(matches!(error, FolderError::Refused { reason: Refusal::SourceFile, .. }));
        }
    }
    assert_eq!(ModelFolder::open(source.path()).unwrap().tensors().len(), 4);
}

#[test]
fn a_hard_link_to_a_file_of_the_model_is_refused() {
    let source = toy::sharded();
    let links = tempfile::tempdir_in(source.path()).unwrap(); // hard links need one file system
    let model = ModelFolder::open(source.path()).unwrap();
    for name in ["config.json", SHARDS[0]] {
        let link = links.path().join(name);
        fs::hard_link(source.path().join(name), &link).unwrap();
        let error = check_file(&link, Some(&model)).unwrap_err();
        toy::assert_says(&error, &[name, "the model is read from this file; give another file"]);
    }
}

#[test]
fn a_path_without_a_folder_is_in_the_current_folder() {
    let (name, source) = (format!("check-{}", std::process::id()), toy::sharded());
    check_file(&name, None).unwrap();
    check_export(&new(), source.path(), &name).unwrap();
    assert!(!Path::new(&name).exists());
}

#[test]
fn only_regular_files_up_to_a_length_are_read() {
    let root = toy::folder(&[("file", b"contents")]);
    let path = |name: &str| root.path().join(name);
    symlink("file", path("link")).unwrap();
    symlink("nowhere", path("nothing")).unwrap();
    toy::pipe(&path("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    for name in ["file", "link"] {
        assert_eq!(read_file(path(name), 8).unwrap(), b"contents");
        let error = read_file(path(name), 7).unwrap_err();
        toy::assert_says(&error, &[name, "has 8 bytes", "at most 7"]);
    }
    for (name, part) in [
        ("absent\n", r"absent\n does not exist; give the path of a file"),
        ("nothing", "is a link to a file that does not exist"),
        ("pipe", "is not a file"),
        ("socket", "is not a file"),
        ("", "is not a file"),
        ("/dev/zero", "/dev/zero is not a file"),
    ] {
        let error = read_file(path(name), 8).unwrap_err();
        toy::check_text(&error);
        toy::assert_says(&error, &[part]);
    }
}
