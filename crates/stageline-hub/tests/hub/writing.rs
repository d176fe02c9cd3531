//! Tests that written model folders have the files, types and values that they should have.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::json;
use stageline_hub::{
    Dtype, FolderError, Layout, ModelFolder, TensorFile, TensorLayout, Values, copy_companions, write_config,
};

use crate::toy::{self, INDEX, SINGLE};

/// Returns the contents of all files in a folder, by their names.
fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

/// Returns the values of a tensor of `folder`, for a test that writes them unchanged. They are f32 values if the
/// tensor's type can be converted to f32, and bytes otherwise.
fn unchanged<'a>(folder: &'a ModelFolder, name: &str) -> Result<Values<'a>, FolderError> {
    let tensor = folder.tensor(name)?;
    Ok(tensor.to_f32().map_or_else(|_| tensor.into(), Values::F32))
}

/// Returns a layout (names, types and shapes of the tensors to write) with one tensor `w` of the given type and shape.
fn one(dtype: Dtype, shape: &[usize]) -> Layout {
    Layout::single([TensorLayout { name: "w".into(), dtype, shape: shape.to_vec() }]).unwrap()
}

/// Writes the given values to a file as a tensor of one dimension in the type `dtype`. Returns the tensor's bytes in
/// the file.
fn written(dtype: Dtype, values: Vec<f32>) -> Vec<u8> {
    let dir = toy::folder(&[("config.json", b"{}")]);
    one(dtype, &[values.len()]).write(dir.path(), |_| Ok::<_, FolderError>(values.clone())).unwrap();
    ModelFolder::open(dir.path()).unwrap().tensor("w").unwrap().bytes.to_vec()
}

#[test]
fn a_sharded_model_with_unchanged_values_is_written_with_the_same_bytes() {
    let (source, target) = (toy::sharded(), toy::folder(&[]));
    let folder = ModelFolder::open(source.path()).unwrap();
    let target = target.path().join("new/folder");
    assert_eq!(copy_companions(source.path(), &target).unwrap(), ["config.json"]);
    let mut asked = Vec::new();
    let layout = folder.layout().unwrap();
    let values = |name: &str| {
        asked.push(name.to_owned());
        unchanged(&folder, name)
    };
    layout.write(&target, values).unwrap();
    assert_eq!(asked, layout.tensors().map(|tensor| tensor.name.clone()).collect::<Vec<_>>());
    assert_eq!(asked, ["h.0.weight", "h.1.weight", "positions", "lm_head.weight"]);
    assert_eq!(layout.total_bytes(), 8 + 4 + 4 + 16);
    assert_eq!(files(&target), files(source.path()));
}

#[test]
fn a_single_file_is_written_as_the_safetensors_crate_writes_it() {
    let tensors = [
        ("b", Dtype::F32, vec![2], toy::f32s(&[1.0, 2.0])),
        ("c", Dtype::BF16, vec![], vec![0x80, 0x3f]),
        ("a", Dtype::F32, vec![0], vec![]),
        ("i", Dtype::I64, vec![1], vec![7; 8]),
    ];
    let described = tensors.iter().map(|(name, dtype, shape, _)| TensorLayout {
        name: (*name).to_owned(),
        dtype: *dtype,
        shape: shape.clone(),
    });
    let layout = Layout::single(described).unwrap();
    let dir = toy::folder(&[]);
    let bytes = |name: &str| tensors.iter().find(|tensor| tensor.0 == name).map(|tensor| tensor.3.clone());
    let values = |name: &str| bytes(name).map(|bytes| Values::Bytes(bytes.into())).ok_or("no such tensor");
    layout.write(dir.path(), values).unwrap();
    assert_eq!(files(dir.path()), BTreeMap::from([(SINGLE.to_owned(), toy::weights(&tensors))]));
}

#[test]
fn every_bit_of_f32_and_every_value_of_f16_and_bf16_survives() {
    let bits = [0, 0x8000_0000, 1, 0x7f80_0000, 0x7f80_0001, 0x7fc0_1234, 0xffff_ffff, 0x3f80_0000];
    assert_eq!(written(Dtype::F32, bits.map(f32::from_bits).to_vec()), bits.map(u32::to_le_bytes).concat());
    for dtype in [Dtype::F16, Dtype::BF16] {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let source = toy::single(&toy::weights(&[("w", dtype, vec![1 << 16], all.clone())]));
        let values = ModelFolder::open(source.path()).unwrap().tensor("w").unwrap().to_f32().unwrap();
        let again = written(dtype, values.clone());
        for ((value, old), new) in values.into_iter().zip(all.chunks(2)).zip(again.chunks(2)) {
            assert!(value.is_nan() || old == new, "{value}");
        }
    }
}

#[test]
fn values_are_rounded_to_the_nearest_and_ties_to_even() {
    let bits = |dtype, value: f32| u16::from_le_bytes(written(dtype, vec![value]).try_into().unwrap());
    // The next larger number than 1 is 1 + 2^-7 in BF16, and 1 + 2^-10 in F16.
    for (dtype, one, step) in [(Dtype::BF16, 0x3f80, 2f32.powi(-7)), (Dtype::F16, 0x3c00, 2f32.powi(-10))] {
        for (steps, expected) in [(0.5, 0), (0.5001, 1), (1.5, 2), (2.5, 2), (2.4999, 2), (3.5, 4)] {
            assert_eq!(bits(dtype, 1.0 + steps * step), one + expected, "{dtype} {steps}");
        }
    }
    assert_eq!((bits(Dtype::F16, 65_519.0), bits(Dtype::F16, f32::INFINITY)), (0x7bff, 0x7c00));
    assert_eq!((bits(Dtype::F16, -0.0), bits(Dtype::F16, 1e-9)), (0x8000, 0));
}

#[test]
fn tensors_of_more_than_one_chunk_are_written_whole() {
    let values: Vec<f32> = (0..200_000u32).map(|i| i as f32).collect();
    assert_eq!(written(Dtype::F32, values.clone()), toy::f32s(&values));
}

#[test]
fn an_old_model_of_the_same_layout_is_replaced() {
    let (source, target) = (toy::sharded(), toy::sharded());
    let folder = ModelFolder::open(source.path()).unwrap();
    let old = ModelFolder::open(target.path()).unwrap();
    let doubled = |name: &str| {
        let tensor = folder.tensor(name)?;
        let doubled = tensor.to_f32().map(|values| values.into_iter().map(|value| 2.0 * value).collect());
        Ok::<Values<'_>, FolderError>(doubled.map_or_else(|_| tensor.into(), Values::F32))
    };
    folder.layout().unwrap().write(target.path(), doubled).unwrap();
    let new = ModelFolder::open(target.path()).unwrap();
    assert_eq!(new.tensor("lm_head.weight").unwrap().to_f32().unwrap(), [2.0, -6.0]);
    assert_eq!(old.tensor("lm_head.weight").unwrap().to_f32().unwrap(), [1.0, -3.0], "a mapped file stays");
    assert_eq!(files(target.path()).len(), 4);
}

#[test]
fn an_index_without_a_total_gets_one() {
    let source = toy::sharded();
    let text = fs::read_to_string(source.path().join(INDEX)).unwrap();
    let map = serde_json::from_str::<serde_json::Value>(&text).unwrap()["weight_map"].clone();
    for index in [json!({ "weight_map": map }), json!({ "metadata": null, "weight_map": map })] {
        fs::write(source.path().join(INDEX), index.to_string()).unwrap();
        let folder = ModelFolder::open(source.path()).unwrap();
        let target = toy::folder(&[]);
        folder.layout().unwrap().write(target.path(), |name| unchanged(&folder, name)).unwrap();
        let text = fs::read_to_string(target.path().join(INDEX)).unwrap();
        let again: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(again, json!({ "metadata": { "total_size": 32 }, "weight_map": map }), "{index}");
    }
}

#[test]
fn a_layout_without_a_tensor_has_the_total_of_the_others() {
    let source = toy::sharded();
    let folder = ModelFolder::open(source.path()).unwrap();
    let layout = folder.layout().unwrap();
    let written = |layout: &stageline_hub::Layout| {
        let target = toy::folder(&[]);
        layout.write(target.path(), |name| unchanged(&folder, name)).unwrap();
        let text = fs::read_to_string(target.path().join(INDEX)).unwrap();
        let index: serde_json::Value = serde_json::from_str(&text).unwrap();
        let tensors = index["weight_map"].as_object().unwrap().len();
        (index["metadata"]["total_size"].as_u64().unwrap(), tensors, files(target.path()).len())
    };
    assert_eq!(written(&layout.clone().without(|_| false)), (32, 4, 3));
    let bytes = |name: &str| folder.tensor(name).unwrap().bytes.len() as u64;
    let without_one = layout.clone().without(|name| name == "positions");
    assert_eq!(written(&without_one), (32 - bytes("positions"), 3, 3));
    // A file without tensors is not written.
    let without_file = without_one.without(|name| name == "lm_head.weight");
    assert_eq!(written(&without_file), (32 - bytes("positions") - bytes("lm_head.weight"), 2, 2));
}

#[test]
fn companions_are_copied_and_a_configuration_is_written() {
    let source = toy::folder(&[("config.json", b"{}"), ("merges.txt", b"a b"), ("notes.md", b""), (SINGLE, b"")]);
    let target = toy::folder(&[("merges.txt", b"old")]);
    assert_eq!(copy_companions(source.path(), target.path()).unwrap(), ["config.json", "merges.txt"]);
    write_config(target.path(), &json!({ "hidden_size": 2 })).unwrap();
    let expected = [("config.json", "{\n  \"hidden_size\": 2\n}\n"), ("merges.txt", "a b")];
    let expected = expected.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
    assert_eq!(files(target.path()), BTreeMap::from(expected));
}

#[cfg(unix)]
#[test]
fn further_chat_templates_are_copied() {
    let (source, target) = (toy::folder(&[("config.json", b"{}"), ("blob", b"linked")]), toy::folder(&[]));
    let [from, to] = [&source, &target].map(|folder| folder.path().join("additional_chat_templates"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("tools.jinja"), "plain").unwrap();
    fs::write(from.join("notes.md"), "").unwrap();
    std::os::unix::fs::symlink("../blob", from.join("rag.jinja")).unwrap();
    let copied = ["config.json", "additional_chat_templates/rag.jinja", "additional_chat_templates/tools.jinja"];
    assert_eq!(copy_companions(source.path(), target.path()).unwrap(), copied);
    let expected = [("rag.jinja", "linked"), ("tools.jinja", "plain")];
    let expected = expected.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
    assert_eq!(files(&to), BTreeMap::from(expected));

    let target = toy::folder(&[("additional_chat_templates", b"a file")]);
    let error = copy_companions(source.path(), target.path()).unwrap_err();
    toy::assert_says(&error, &["additional_chat_templates is not written: a file is there", "move the file"]);
}

#[test]
fn a_tensor_that_comes_in_parts_is_a_file_of_the_safetensors_crate() {
    let target = toy::folder(&[("logits", b"old contents, which are longer than those of the new file, by far")]);
    let path = target.path().join("logits");
    let values = [1.0, -2.0, 0.5, 4.0, 5.0, -0.0];
    let mut file = TensorFile::create(&path, "logits", &[2, 1, 3]).unwrap();
    file.push(values[..2].to_vec()).unwrap();
    file.push(values[2..].to_vec()).unwrap();
    file.finish().unwrap();
    let expected = toy::weights(&[("logits", Dtype::F32, vec![2, 1, 3], toy::f32s(&values))]);
    assert!(fs::read(&path).unwrap() == expected);
    for count in [5, 7] {
        let mut file = TensorFile::create(&path, "logits", &[2, 1, 3]).unwrap();
        file.push(vec![0.0; count]).unwrap();
        let error = file.finish().unwrap_err().to_string();
        assert!(error.contains(&format!("takes 6 values, but got {count}")), "{error}");
    }
}

/// Tests that an old file stays unchanged until the new file that replaces it is complete. Its hard links keep the old
/// contents afterwards.
#[cfg(unix)]
#[test]
fn an_old_file_stays_until_the_new_one_is_complete() {
    let target = toy::folder(&[("old", b"contents")]);
    let path = |name: &str| target.path().join(name);
    fs::hard_link(path("old"), path("other name")).unwrap();
    std::os::unix::fs::symlink("old", path("link")).unwrap();
    let before = files(target.path());
    for name in ["old", "link", "new"] {
        let mut file = TensorFile::create(path(name), "logits", &[1]).unwrap();
        file.push([1.0]).unwrap();
        drop(file);
        assert_eq!(files(target.path()), before, "{name}");
    }
    let mut file = TensorFile::create(path("link"), "logits", &[1]).unwrap();
    file.push([1.0]).unwrap();
    file.finish().unwrap();
    let new = toy::weights(&[("logits", Dtype::F32, vec![1], toy::f32s(&[1.0]))]);
    assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());
    assert_eq!((fs::read(path("old")).unwrap(), fs::read(path("other name")).unwrap()), (new, b"contents".to_vec()));
    for wrong in [target.path(), Path::new("/dev/null"), Path::new("")] {
        let error = TensorFile::create(wrong, "logits", &[1]).err().unwrap();
        toy::assert_says(&error, &["it is not a regular file"]);
    }
}
