//! Tests that other programs can read the weights in a checkpoint.

use std::fs;

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::toy;

#[test]
fn the_safetensors_crate_reads_every_tensor() {
    let (_dir, path) = toy::two();
    let checkpoint = toy::checkpoint(20);
    let index: Value = serde_json::from_slice(&fs::read(path.join("model.safetensors.index.json")).unwrap()).unwrap();
    for (name, tensor) in &checkpoint.parameters {
        let file = fs::read(path.join(index["weight_map"][name].as_str().unwrap())).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let view = tensors.tensor(name).unwrap();
        assert_eq!((view.dtype(), view.shape(), view.data()), (tensor.dtype, &tensor.shape[..], &tensor.bytes[..]));
        let (_, metadata) = SafeTensors::read_metadata(&file).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    }
    let file = fs::read(path.join("optimizer/blocks.0.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let time = tensors.tensor("blocks.0.up.weight/momentum.time").unwrap();
    assert_eq!((time.shape(), time.data()), (&[][..], &20u64.to_le_bytes()[..]));
}

#[test]
fn the_index_lists_the_parameters_and_their_bytes() {
    let (_dir, path) = toy::two();
    let index: Value = serde_json::from_slice(&fs::read(path.join("model.safetensors.index.json")).unwrap()).unwrap();
    let expected = json!({
        "metadata": {"total_size": 24 + 12 + 4},
        "weight_map": {
            "blocks.0.up.bias": "blocks.0.safetensors",
            "blocks.0.up.weight": "blocks.0.safetensors",
            "head.w": "head.safetensors",
        }
    });
    assert_eq!(index, expected);
}

#[test]
fn tensor_files_equal_those_of_the_safetensors_crate() {
    let (_dir, path) = toy::two();
    let checkpoint = toy::checkpoint(20);
    let view = |name: &str| {
        let tensor = &checkpoint.parameters[name];
        (
            name.to_owned(),
            safetensors::tensor::TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap(),
        )
    };
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let expected =
        safetensors::serialize([view("blocks.0.up.weight"), view("blocks.0.up.bias")], Some(metadata)).unwrap();
    assert_eq!(fs::read(path.join("blocks.0.safetensors")).unwrap(), expected);
}
