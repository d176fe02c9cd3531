//! Tests that a refused write of a model leaves the model folder unchanged.

use std::fs;

use serde_json::json;
use stageline_hub::{
    Dtype, FolderError, Layout, ModelFolder, Refusal, TensorLayout, Values, copy_companions, write_config,
};

use crate::toy::{self, INDEX, SINGLE};

fn tensor(name: &str, dtype: Dtype, shape: &[usize]) -> TensorLayout {
    TensorLayout { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

/// Asserts that a model with the given layout and values is not written to a folder, and that the folder stays empty.
/// The error message must contain `parts`.
#[track_caller]
fn assert_refused(layout: &Layout, values: impl FnMut(&str) -> Result<Values<'static>, String>, parts: &[&str]) {
    let dir = toy::folder(&[]);
    let error = layout.write(dir.path(), values).unwrap_err();
    toy::check_text(&error);
    toy::assert_says(&error, &["is not written"]);
    toy::assert_says(&error, parts);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn values_that_do_not_fit_are_refused() {
    let two = Layout::single([tensor("a", Dtype::F32, &[1]), tensor("w\n", Dtype::BF16, &[2, 3])]).unwrap();
    for count in [0, 5, 7] {
        let values = |name: &str| Ok(Values::F32(vec![0.0; if name == "a" { 1 } else { count }]));
        let parts = [SINGLE, r"`w\n` of shape [2, 3] takes 6 values", &format!("got {count}")];
        assert_refused(&two, values, &parts);
    }
    let values = |_: &str| Ok(Values::Bytes(vec![0; 6].into()));
    assert_refused(&two, values, &["`a` of shape [1] takes 4 bytes, but got 6"]);

    let integer = Layout::single([tensor("i", Dtype::I64, &[1])]).unwrap();
    assert_refused(&integer, |_| Ok(vec![1.0].into()), &[SINGLE, "`i` has the type I64", "return its bytes"]);

    let half = Layout::single([tensor("h", Dtype::F16, &[100_000])]).unwrap();
    let mut values = vec![f32::INFINITY; 100_000];
    values[99_999] = -65_520.0;
    let parts = ["value -6.552e4 of the tensor `h`, at index 99999, would be infinite in F16"];
    assert_refused(&half, |_| Ok(values.clone().into()), &parts);
}

#[test]
fn an_error_of_the_caller_comes_out_and_ends_the_write() {
    let layout = Layout::single([tensor("a", Dtype::F32, &[1]), tensor("b", Dtype::F32, &[1])]).unwrap();
    let mut asked = 0;
    let values = |_: &str| -> Result<Vec<f32>, String> {
        asked += 1;
        Err("the device is lost\u{1b}".to_owned())
    };
    let dir = toy::folder(&[]);
    let error = layout.write(dir.path(), values).unwrap_err();
    assert_eq!(asked, 1);
    toy::assert_says(&error, &[SINGLE, "no values for the tensor `a`"]);
    assert!(format!("{error:?}").ends_with(r"`a`: the device is lost\u{1b}"));
    assert!(
        matches!(error, FolderError::Values { source, .. } if source.to_string().starts_with("the device is lost"))
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_layout_with_wrong_names_or_sizes_is_refused() {
    let refused = |tensors: &[TensorLayout], part: &str| {
        let error = Layout::single(tensors.to_vec()).unwrap_err();
        toy::check_text(&error);
        toy::assert_says(&error, &[SINGLE, "is not written", part]);
    };
    refused(&[tensor("a\n", Dtype::F32, &[1]), tensor("a\n", Dtype::F16, &[2])], r"two tensors have the name `a\n`");
    refused(&[tensor("__metadata__", Dtype::F32, &[1])], "the format reserves this name");
    refused(&[tensor("a", Dtype::F32, &[usize::MAX, 2])], "overflows");
    refused(&[tensor("a", Dtype::F4, &[3])], "not a whole number of bytes");
    let large = [tensor("a", Dtype::U8, &[usize::MAX / 8]), tensor("b", Dtype::U8, &[usize::MAX / 8])];
    assert!(Layout::single(large.clone()).is_ok());
    let many: Vec<_> = (0..9).map(|i| tensor(&i.to_string(), Dtype::U8, &[usize::MAX / 8])).collect();
    refused(&many, "overflows");
}

#[test]
fn the_folder_of_the_source_is_refused() {
    let source = toy::sharded();
    let folder = ModelFolder::open(source.path()).unwrap();
    let same = source.path().join(".").join("..").join(source.path().file_name().unwrap());
    let error = folder.layout().unwrap().write(&same, |name| folder.tensor(name)).unwrap_err();
    assert!(matches!(&error, FolderError::Refused { reason: Refusal::Source, .. }), "{error}");
    toy::assert_says(&error, &["the model is read from this folder", "give another folder"]);
    let error = copy_companions(source.path(), &same).unwrap_err();
    toy::assert_says(&error, &["give another folder"]);
    assert_eq!(fs::read_dir(source.path()).unwrap().count(), 4);
}

#[test]
fn weights_that_would_hide_the_new_ones_are_refused() {
    let source = toy::sharded();
    let folder = ModelFolder::open(source.path()).unwrap();
    let target = toy::single(b"");
    let error = folder.layout().unwrap().write(target.path(), |name| folder.tensor(name)).unwrap_err();
    toy::assert_says(&error, &["has `model.safetensors`", "remove it"]);

    let layout = Layout::single([tensor("a", Dtype::F32, &[1])]).unwrap();
    let target = toy::sharded();
    let error = layout.write(target.path(), |_| Ok::<_, FolderError>(vec![1.0])).unwrap_err();
    toy::assert_says(&error, &[&format!("has `{INDEX}`"), "remove it"]);
    ModelFolder::open(target.path()).unwrap();
}

#[test]
fn a_configuration_must_be_an_object() {
    let dir = toy::folder(&[]);
    let error = write_config(dir.path(), &json!([1])).unwrap_err();
    toy::assert_says(&error, &["config.json is not written", "pass an object"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_path_that_cannot_be_written_is_an_error() {
    let dir = toy::folder(&[("file", b"")]);
    let layout = Layout::single([tensor("a", Dtype::F32, &[1])]).unwrap();
    let error = layout.write(dir.path().join("file"), |_| Ok::<_, FolderError>(vec![1.0])).unwrap_err();
    toy::check_text(&error);
    toy::assert_says(&error, &["cannot create the folder", "file", "make the folder writable"]);
    fs::create_dir(dir.path().join(SINGLE)).unwrap();
    let error = layout.write(dir.path(), |_| Ok::<_, FolderError>(vec![1.0])).unwrap_err();
    toy::assert_says(&error, &["cannot replace", SINGLE]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the temporary file is removed");
}
