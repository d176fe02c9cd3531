//! Small checkpoints whose contents depend on the step alone, and helpers to save and read them.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use stageline_checkpoint::{
    Checkpoint, CheckpointError, Dtype, FrozenTensor, LossScale, Progress, Saved, Store, Tensor,
};

use crate::error_texts;

/// Returns a small checkpoint for tests after `steps` training steps, with two layer groups and optimizer state.
pub fn checkpoint(steps: u64) -> Checkpoint {
    let seed = steps as f32;
    let parameters = [
        ("blocks.0.up.weight", f32s(&[2, 3], seed)),
        ("blocks.0.up.bias", f32s(&[3], -seed)),
        ("head.w", halves(seed)),
    ];
    let optimizer = [
        ("blocks.0.up.weight/momentum.moment_1", f32s(&[2, 3], seed + 0.5)),
        ("blocks.0.up.weight/momentum.time", Tensor::new(Dtype::I64, vec![], steps.to_le_bytes().to_vec().into())),
        ("head.w/momentum.moment_1", halves(seed + 0.25)),
    ];
    Checkpoint {
        progress: Progress {
            steps,
            optimizer_steps: steps / 2,
            loss_scale: Some(LossScale { scale: 65536.0, good_steps: steps % 7 }),
        },
        run: BTreeMap::from([("seed".to_owned(), serde_json::json!(7)), ("plan".to_owned(), "1f1b".into())]),
        parameters: owned(parameters),
        optimizer: owned(optimizer),
        frozen: BTreeMap::from([("blocks.0.base".to_owned(), FrozenTensor::of(&f32s(&[4], seed)))]),
    }
}

/// Returns an f32 tensor whose elements are `value`, `value + 1`, and so on.
pub fn f32s(shape: &[usize], value: f32) -> Tensor {
    let bytes = (0..shape.iter().product()).flat_map(|i: usize| (value + i as f32).to_le_bytes()).collect::<Vec<_>>();
    Tensor::new(Dtype::F32, shape.to_vec(), bytes.into())
}

fn halves(value: f32) -> Tensor {
    let [_, _, a, b] = value.to_le_bytes();
    Tensor::new(Dtype::BF16, vec![1, 2], vec![a, b, 0, 0].into())
}

pub fn owned<const N: usize>(tensors: [(&str, Tensor); N]) -> BTreeMap<String, Tensor> {
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

pub fn store(dir: &Path, keep: usize) -> Store {
    Store::open(dir, NonZero::new(keep).unwrap()).unwrap()
}

/// Opens and reads a checkpoint for a test. If that fails, asserts that the error message is safe to print.
pub fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
    Saved::open(path).and_then(|saved| saved.read()).inspect_err(error_texts::check)
}

pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub fn files(checkpoint: &Path) -> Vec<String> {
    let manifest = Saved::open(checkpoint).unwrap().manifest().clone();
    manifest.files.into_iter().map(|file| file.name).chain(["manifest.json".to_owned()]).collect()
}

/// Creates a temporary folder in memory, or on disk if `/dev/shm` does not exist. Tests that damage thousands of files
/// or kill hundreds of writers are faster in memory.
pub fn quick_folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Saves two checkpoints in a new folder, and returns the folder and the path of the second checkpoint.
pub fn two() -> (tempfile::TempDir, PathBuf) {
    let dir = quick_folder();
    let mut store = store(dir.path(), 2);
    store.save(&checkpoint(10)).unwrap();
    let path = store.save(&checkpoint(20)).unwrap();
    (dir, path)
}
