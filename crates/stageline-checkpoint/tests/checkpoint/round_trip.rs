//! Tests that a checkpoint is read back as it was written, bit for bit.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};
use stageline_checkpoint::{Checkpoint, Dtype, FrozenTensor, LossScale, Progress, Saved, Tensor};

use crate::toy;

#[test]
fn a_checkpoint_and_its_manifest_are_read_back() {
    let (_dir, path) = toy::two();
    let saved = Saved::open(&path).unwrap();
    assert_eq!(saved.path(), path);
    assert_eq!(saved.read().unwrap(), toy::checkpoint(20));
    let manifest = saved.manifest();
    assert_eq!((manifest.version, manifest.stageline.as_str()), (1, env!("CARGO_PKG_VERSION")));
    assert_eq!((manifest.progress, &manifest.run), (toy::checkpoint(20).progress, &toy::checkpoint(20).run));
    assert_eq!(
        toy::files(&path),
        [
            "blocks.0.safetensors",
            "head.safetensors",
            "optimizer/blocks.0.safetensors",
            "optimizer/head.safetensors",
            "model.safetensors.index.json",
            "manifest.json"
        ]
    );
    let entry = &manifest.optimizer["blocks.0.up.weight/momentum.moment_1"];
    assert_eq!(
        (entry.file.as_str(), entry.dtype, entry.shape.as_slice()),
        ("optimizer/blocks.0.safetensors", Dtype::F32, &[2, 3][..])
    );
}

#[test]
fn an_empty_checkpoint_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let empty = Checkpoint {
        progress: Progress { steps: 1 << 53, optimizer_steps: 1 << 53, loss_scale: None },
        run: BTreeMap::new(),
        parameters: BTreeMap::new(),
        optimizer: BTreeMap::new(),
        frozen: BTreeMap::new(),
    };
    let path = toy::store(dir.path(), 1).save(&empty).unwrap();
    assert_eq!(toy::names(&path), ["manifest.json", "model.safetensors.index.json"]);
    assert_eq!(toy::read(&path).unwrap(), empty);
}

#[test]
fn long_and_odd_names_and_empty_tensors_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut checkpoint = toy::checkpoint(1);
    let long = "é".repeat(400);
    for (i, name) in
        ["", ".", "..", "/", "a/../b.1.c", "\0\n\"\\", "%", "CON.3.x", "manifest.json", &long].into_iter().enumerate()
    {
        checkpoint.parameters.insert(name.to_owned(), toy::f32s(&[i, 0], 0.0));
        checkpoint.parameters.insert(format!("{name}.w"), toy::f32s(&[], i as f32));
        checkpoint.optimizer.insert(format!("{name}/time"), toy::f32s(&[0], 0.0));
    }
    let path = toy::store(dir.path(), 1).save(&checkpoint).unwrap();
    assert_eq!(toy::read(&path).unwrap(), checkpoint);
}

#[test]
fn a_tensor_has_values_or_a_hash_and_not_both() {
    let dir = tempfile::tempdir().unwrap();
    let mut checkpoint = toy::checkpoint(1);
    checkpoint.frozen.insert("head.w".to_owned(), FrozenTensor::of(&checkpoint.parameters["head.w"]));
    let error = toy::store(dir.path(), 1).save(&checkpoint).unwrap_err().to_string();
    assert!(error.contains("`head.w` has values, and a hash in their place"), "{error}");
    assert!(toy::names(dir.path()).iter().all(|name| name == ".lock"));
}

const DTYPES: [Dtype; 17] = [
    Dtype::BOOL,
    Dtype::U8,
    Dtype::I8,
    Dtype::F8_E4M3,
    Dtype::F8_E5M2,
    Dtype::I16,
    Dtype::U16,
    Dtype::F16,
    Dtype::BF16,
    Dtype::I32,
    Dtype::U32,
    Dtype::F32,
    Dtype::C64,
    Dtype::F64,
    Dtype::I64,
    Dtype::U64,
    Dtype::F8_E8M0,
];

/// Generates a tensor of a random type and shape with random bytes, for a property test. In floats of 16 bits or more,
/// the top bit of the exponent is cleared, so that they are finite.
fn tensor() -> impl Strategy<Value = Tensor> {
    let shape = prop::collection::vec(0usize..4, 0..4);
    (prop::sample::select(&DTYPES[..]), shape).prop_flat_map(|(dtype, shape)| {
        let width = dtype.bitsize() / 8;
        let length = shape.iter().product::<usize>() * width;
        prop::collection::vec(any::<u8>(), length).prop_map(move |mut bytes| {
            let width = if dtype == Dtype::C64 { 4 } else { width };
            if matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64 | Dtype::C64) {
                bytes.chunks_exact_mut(width).for_each(|element| element[width - 1] &= 0xBF);
            }
            Tensor::new(dtype, shape.clone(), bytes.into())
        })
    })
}

fn tensors(name: &'static str) -> impl Strategy<Value = BTreeMap<String, Tensor>> {
    prop::collection::btree_map(name, tensor(), 0..6)
}

fn value() -> impl Strategy<Value = Value> {
    let float = any::<u64>().prop_map(|bits| json!(f64::from_bits(bits)));
    let leaf =
        prop_oneof![Just(Value::Null), float, any::<i64>().prop_map(Value::from), ".{0,4}".prop_map(Value::from)];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let array = prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from);
        let keys = prop_oneof!["\\${0,3}f64", ".{0,3}"];
        prop_oneof![array, prop::collection::btree_map(keys, inner, 0..3).prop_map(|map| json!(map))]
    })
}

fn progress() -> impl Strategy<Value = Progress> {
    let scale = any::<f64>().prop_map(f64::abs).prop_filter("a scale is positive", |scale| scale.is_normal());
    let scale = prop::option::of((scale, any::<u64>()).prop_map(|(scale, good_steps)| LossScale { scale, good_steps }));
    let steps = (0..=1u64 << 53).prop_flat_map(|steps| (Just(steps), 0..=steps));
    (steps, scale).prop_map(|((steps, optimizer_steps), loss_scale)| Progress { steps, optimizer_steps, loss_scale })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn any_checkpoint_is_read_back(
        progress in progress(),
        run in prop::collection::btree_map(".{0,6}", value(), 0..4),
        parameters in tensors("[a-c]{0,2}(\\.[0-2]{0,2}){0,2}|.{0,12}"),
        optimizer in tensors("[a-c]{0,2}(\\.[0-2]{0,2})?/[xy.]{0,3}|.{0,12}"),
        frozen in tensors("[f-h]{1,2}(\\.[0-2]{0,2}){0,2}"),
    ) {
        let dir = toy::quick_folder();
        let frozen = frozen.iter().filter(|(name, _)| !parameters.contains_key(*name));
        let frozen = frozen.map(|(name, tensor)| (name.clone(), FrozenTensor::of(tensor))).collect();
        let checkpoint = Checkpoint { progress, run, parameters, optimizer, frozen };
        let path = toy::store(dir.path(), 1).save(&checkpoint).unwrap();
        let read = toy::read(&path).unwrap();
        let bits = |checkpoint: &Checkpoint| checkpoint.progress.loss_scale.map(|scale| scale.scale.to_bits());
        prop_assert_eq!(bits(&read), bits(&checkpoint));
        prop_assert_eq!(read, checkpoint);
    }
}
