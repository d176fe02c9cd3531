//! Tests that reading a valid model folder gives the tensors that were written into it.

use std::os::unix::fs::symlink;

use stageline_hub::{Dtype, FolderError, ModelFolder, TensorInfo};

use crate::toy::{self, INDEX, SHARDS, SINGLE};

#[test]
fn a_folder_with_an_index_has_all_tensors_of_its_files() {
    let dir = toy::sharded();
    let folder = ModelFolder::open(dir.path()).unwrap();
    assert_eq!((folder.path(), &folder.config().unwrap()["hidden_size"]), (dir.path(), &2.into()));
    let names: Vec<&str> = folder.tensors().map(|(name, _)| name).collect();
    assert_eq!(names, ["h.0.weight", "h.1.weight", "lm_head.weight", "positions"]);
    let expected = TensorInfo { dtype: Dtype::F16, shape: vec![2], file: SHARDS[0].to_owned() };
    assert_eq!(folder.tensors().nth(1), Some(("h.1.weight", &expected)));

    let values = |name| folder.tensor(name).and_then(|tensor| tensor.to_f32()).unwrap();
    assert_eq!(values("h.0.weight"), [1.5, -2.0]);
    assert_eq!(values("h.1.weight"), [1.0, -2.0]);
    assert_eq!(values("lm_head.weight"), [1.0, -3.0]);
    let positions = folder.expect("positions", &[2]).unwrap();
    assert_eq!((positions.name, positions.dtype, positions.shape), ("positions", Dtype::I64, [2].as_slice()));
    assert_eq!(positions.bytes, [0i64, 1].map(i64::to_le_bytes).concat());
}

#[test]
fn a_generation_config_is_read_if_it_is_there() {
    let dir = toy::sharded();
    assert_eq!(ModelFolder::open(dir.path()).unwrap().generation_config(), None);
    let path = dir.path().join("generation_config.json");
    std::fs::write(&path, r#"{"eos_token_id": [2, 7]}"#).unwrap();
    let folder = ModelFolder::open(dir.path()).unwrap();
    assert_eq!(folder.generation_config().unwrap()["eos_token_id"][1], 7);
    std::fs::write(&path, "[2, 7]").unwrap();
    let error = ModelFolder::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("generation_config.json") && error.contains("not an object"), "{error}");
}

#[test]
fn an_f32_tensor_keeps_every_bit() {
    let bits = [0, 0x8000_0000, 1, 0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0x7fc0_1234, 0xffff_ffff, 0x3f80_0000];
    let bytes = bits.map(u32::to_le_bytes).concat();
    let dir = toy::single(&toy::weights(&[("w", Dtype::F32, vec![3, 3], bytes)]));
    let values = ModelFolder::open(dir.path()).unwrap().tensor("w").unwrap().to_f32().unwrap();
    assert_eq!(values.into_iter().map(f32::to_bits).collect::<Vec<_>>(), bits);
}

/// Returns the value of a 16-bit float from its bits, given the number of bits of its exponent and of its mantissa.
fn value_of(bits: u16, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from((bits >> mantissa_bits) & ((1 << exponent_bits) - 1));
    let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let bias = (1 << (exponent_bits - 1)) - 1;
    match exponent {
        0 => sign * mantissa * 2f64.powi(1 - bias),
        _ if exponent == (1 << exponent_bits) - 1 && mantissa == 0.0 => sign * f64::INFINITY,
        _ if exponent == (1 << exponent_bits) - 1 => f64::NAN,
        _ => sign * (1.0 + mantissa) * 2f64.powi(exponent - bias),
    }
}

#[test]
fn every_f16_and_bf16_is_converted_exactly() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let tensors = [("a", Dtype::F16, vec![1 << 16], all.clone()), ("b", Dtype::BF16, vec![1 << 16], all)];
    let dir = toy::single(&toy::weights(&tensors));
    let folder = ModelFolder::open(dir.path()).unwrap();
    for (name, exponent_bits, mantissa_bits) in [("a", 5, 10), ("b", 8, 7)] {
        let values = folder.tensor(name).unwrap().to_f32().unwrap();
        for (bits, value) in (0..=u16::MAX).zip(values) {
            let expected = value_of(bits, exponent_bits, mantissa_bits);
            let is_same = f64::from(value).to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan());
            assert!(is_same, "{name} {bits:#06x}: {value} is not {expected}");
        }
    }
}

#[test]
fn tensors_at_odd_offsets_are_read() {
    let header = r#"{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},"x":{"dtype":"F16","shape":[1],"data_offsets":[5,7]}}"#;
    let dir = toy::single(&toy::raw(header, &[&[7], toy::f32s(&[2.5]).as_slice(), &[0, 0x3c]].concat()));
    let folder = ModelFolder::open(dir.path()).unwrap();
    assert_eq!(folder.tensor("w").unwrap().to_f32().unwrap(), [2.5]);
    assert_eq!(folder.tensor("x").unwrap().to_f32().unwrap(), [1.0]);
}

#[test]
fn scalars_and_empty_tensors_are_read() {
    let tensors = [("empty", Dtype::F32, vec![0, 3], vec![]), ("scalar", Dtype::F32, vec![], toy::f32s(&[-0.0]))];
    let dir = toy::single(&toy::weights(&tensors));
    let folder = ModelFolder::open(dir.path()).unwrap();
    assert!(folder.expect("empty", &[0, 3]).unwrap().to_f32().unwrap().is_empty());
    assert!(folder.expect("scalar", &[]).unwrap().to_f32().unwrap()[0].is_sign_negative());
}

#[test]
fn links_of_the_cache_of_the_hub_are_followed() {
    let blobs = toy::single(&toy::weights(&[("w", Dtype::F32, vec![1], toy::f32s(&[1.0]))]));
    let snapshot = toy::folder(&[]);
    for name in ["config.json", SINGLE] {
        symlink(blobs.path().join(name), snapshot.path().join(name)).unwrap();
    }
    assert_eq!(ModelFolder::open(snapshot.path()).unwrap().tensors().len(), 1);
}

#[test]
fn a_missing_tensor_is_an_error_with_the_file_and_similar_names() {
    let dir = toy::sharded();
    let folder = ModelFolder::open(dir.path()).unwrap();
    let error = folder.tensor("h.2.weight").unwrap_err();
    toy::check_text(&error);
    let index = dir.path().join(INDEX);
    let says = format!("{} has no tensor `h.2.weight`", index.display());
    toy::assert_says(&error, &[&says, "`h.0.weight`, `h.1.weight`"]);
    let error = folder.tensor("\u{1b}[2J").unwrap_err();
    toy::check_text(&error);
    toy::assert_says(&error, &[r"`\u{1b}[2J`", "check that these are the weights of the model"]);

    let dir = toy::single(&toy::weights(&[("w", Dtype::F32, vec![1], toy::f32s(&[1.0]))]));
    let error = ModelFolder::open(dir.path()).unwrap().tensor("x").unwrap_err();
    let says = format!("{} has no tensor `x`", dir.path().join(SINGLE).display());
    toy::assert_says(&error, &[&says, "check that these are the weights of the model"]);
}

#[test]
fn a_wrong_shape_is_an_error_with_both_shapes() {
    let dir = toy::sharded();
    let error = ModelFolder::open(dir.path()).unwrap().expect("h.0.weight", &[1, 2]).unwrap_err();
    toy::check_text(&error);
    toy::assert_says(&error, &[SHARDS[0], "`h.0.weight` with the shape [2, 1]", "expects [1, 2]"]);
}

#[test]
fn an_integer_tensor_is_not_converted() {
    let dir = toy::sharded();
    let folder = ModelFolder::open(dir.path()).unwrap();
    let error = folder.tensor("positions").unwrap().to_f32().unwrap_err();
    toy::check_text(&error);
    toy::assert_says(&error, &[SHARDS[1], "`positions`", "type I64", "only F32, F16 and BF16"]);
    assert!(matches!(error, FolderError::Dtype { dtype: Dtype::I64, .. }));
}

#[test]
fn tensors_have_the_same_values_if_they_are_equal_in_f32() {
    let more = (1 << 20) + 3; // more elements than are compared at a time
    let long = |last: f32| toy::f32s(&[vec![0.5; more - 1], vec![last]].concat());
    let dir = toy::single(&toy::weights(&[
        ("f32", Dtype::F32, vec![2], toy::f32s(&[1.5, -0.0])),
        ("bf16", Dtype::BF16, vec![2], [0x3fc0_u16, 0].map(u16::to_le_bytes).concat()),
        ("other", Dtype::F32, vec![2], toy::f32s(&[1.5, 1e-30])),
        ("shape", Dtype::F32, vec![1, 2], toy::f32s(&[1.5, 0.0])),
        ("integers", Dtype::I64, vec![2], [1_i64, 0].map(i64::to_le_bytes).concat()),
        ("long", Dtype::F32, vec![more], long(1.0)),
        ("long-too", Dtype::F32, vec![more], long(1.0)),
        ("long-other", Dtype::F32, vec![more], long(2.0)),
    ]));
    let folder = ModelFolder::open(dir.path()).unwrap();
    for (name, other, same) in [
        ("f32", "bf16", true),
        ("f32", "other", false),
        ("f32", "shape", false),
        ("long", "long-too", true),
        ("long", "long-other", false),
    ] {
        assert_eq!(folder.has_same_values(name, other).unwrap(), same, "{name} {other}");
    }
    assert!(matches!(folder.has_same_values("f32", "integers"), Err(FolderError::Dtype { .. })));
    assert!(matches!(folder.has_same_values("f32", "none"), Err(FolderError::MissingTensor { .. })));
}
