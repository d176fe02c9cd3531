//! Makes small model folders for tests, whose weights files are written by the safetensors crate or byte by byte.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use stageline_hub::{Dtype, FolderError, ModelFolder};
use tempfile::TempDir;

pub const INDEX: &str = "model.safetensors.index.json";
pub const SINGLE: &str = "model.safetensors";
pub const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// The contents of `model.safetensors.index.json` in the test folder that [`sharded`] makes. They say which of two
/// weights files has each tensor.
pub const INDEX_TEXT: &str = r#"{
  "metadata": {
    "total_parameters": 8,
    "total_size": 32
  },
  "weight_map": {
    "h.0.weight": "model-00001-of-00002.safetensors",
    "h.1.weight": "model-00001-of-00002.safetensors",
    "lm_head.weight": "model-00002-of-00002.safetensors",
    "positions": "model-00002-of-00002.safetensors"
  }
}
"#;

/// A tensor of a weights file in tests: its name, type, shape and bytes.
pub type Tensor<'a> = (&'a str, Dtype, Vec<usize>, Vec<u8>);

/// Returns the little-endian bytes of F32 values.
pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Returns the bytes of a weights file with the given tensors, as the safetensors crate writes it.
pub fn weights(tensors: &[Tensor]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.clone(), bytes).expect("the bytes fit the shape"))
    });
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(format)).unwrap()
}

/// Returns the bytes of a weights file with the given header and tensor bytes, both of which may be invalid.
pub fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Creates a temporary folder with files of the given names and contents.
pub fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    for (name, contents) in files {
        fs::write(dir.path().join(name), contents).unwrap();
    }
    dir
}

/// Returns the names and contents of the files of a model with four tensors in two weights files.
pub fn sharded_files() -> Vec<(&'static str, Vec<u8>)> {
    let first = [
        ("h.0.weight", Dtype::F32, vec![2, 1], f32s(&[1.5, -2.0])),
        ("h.1.weight", Dtype::F16, vec![2], [0x3c00u16, 0xc000].map(u16::to_le_bytes).concat()),
    ];
    let second = [
        ("lm_head.weight", Dtype::BF16, vec![1, 2], [0x3f80u16, 0xc040].map(u16::to_le_bytes).concat()),
        ("positions", Dtype::I64, vec![2], [0i64, 1].map(i64::to_le_bytes).concat()),
    ];
    vec![
        ("config.json", br#"{"model_type": "llama", "hidden_size": 2}"#.to_vec()),
        (INDEX, INDEX_TEXT.into()),
        (SHARDS[0], weights(&first)),
        (SHARDS[1], weights(&second)),
    ]
}

/// Makes the folder of a model with four tensors in two weights files.
pub fn sharded() -> TempDir {
    let files = sharded_files();
    folder(&files.iter().map(|(name, contents)| (*name, contents.as_slice())).collect::<Vec<_>>())
}

/// Makes a model folder whose only weights file has the given bytes.
pub fn single(weights: &[u8]) -> TempDir {
    folder(&[("config.json", b"{}"), (SINGLE, weights)])
}

/// Opens a model folder, which must fail, and returns the error. Checks that the text of the error is safe to print.
pub fn refused(path: &Path) -> FolderError {
    let error = ModelFolder::open(path).expect_err("the folder is malformed");
    check_text(&error);
    error
}

/// Asserts that the texts of an error about a model folder, and of its causes, are short and free of control
/// characters.
pub fn check_text(error: &FolderError) {
    let mut texts = vec![error.to_string(), format!("{error:?}")];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    for text in texts {
        assert!(text.len() <= FolderError::MOST_BYTES, "{} bytes: {text}", text.len());
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}

/// Asserts that the text of an error about a model folder contains all of the given parts.
#[track_caller]
pub fn assert_says(error: &FolderError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

/// Makes a named pipe. A process that opens it waits until another process opens it too.
pub fn pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo can be run");
    assert!(made.success(), "mkfifo {}", path.display());
}
