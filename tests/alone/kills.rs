//! Tests that kill trainings at every point of writing a checkpoint. Each training resumes from the checkpoints on disk
//! with another partition, and the last one ends with the same bits as an undisturbed training.

#![cfg(unix)]

use std::num::NonZero;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{self, Command};
use std::{env, thread};

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::checkpoint::{Checkpoint, CheckpointError, Saved, Store, WritePoint};
use stageline::{Batch, Pipeline, StageConfig};

use crate::model::{Bytes, Logits, Shape, costs, gpt};

const SHAPE: Shape = Shape { layers: 3, width: 8, context: 8 };
const DIR: &str = "STAGELINE_TEST_KILLED";
const POINT: &str = "STAGELINE_TEST_KILLED_AT";
const STAGES: &str = "STAGELINE_TEST_KILLED_STAGES";
const SIGKILL: i32 = 9;
/// The number of times that the test kills a training at each point of writing a checkpoint.
const ROUNDS: usize = 5;

fn batch(step: u64) -> Batch<Bytes, Bytes> {
    let text = |step: u64| -> Tensor<2, Int> {
        let bytes = (0..4 * SHAPE.context as u64).map(|at| ((at * 7 + step * 31) * (at + 3) % 256) as i32);
        Tensor::from_data(TensorData::new(bytes.collect(), [4, SHAPE.context]), &Device::flex())
    };
    Batch::new(text(step), text(step + 1))
}

/// Builds a pipeline of a small GPT with `stages` stages. It resumes from the checkpoint `from`, if one is given.
fn pipeline(stages: usize, from: Option<Checkpoint>) -> Pipeline<Bytes, Logits, Bytes> {
    let cut = costs(SHAPE).cut(stages).unwrap();
    let config = StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-3);
    let builder = gpt(SHAPE, 3).pipeline(&cut, vec![config; stages]).unwrap().micro_batches(2).cores_per_stage(1);
    match from {
        Some(checkpoint) => builder.restore(checkpoint).build().unwrap(),
        None => builder.build().unwrap(),
    }
}

/// Reads the latest checkpoint in a folder. Returns `None` if the folder has no checkpoint.
fn kept(dir: &Path) -> Option<Checkpoint> {
    match Saved::open(dir) {
        Ok(saved) => Some(saved.read().unwrap()),
        Err(CheckpointError::NoCheckpoint { .. } | CheckpointError::PathNotFound { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn store(dir: &Path) -> Store {
    Store::open(dir, NonZero::new(2).unwrap()).unwrap()
}

/// Trains in a child process that another test starts. The process writes a checkpoint after every step, and kills
/// itself during a write after the first one.
#[test]
#[ignore = "is started by another test"]
fn child_training() {
    let Ok(dir) = env::var(DIR) else { return };
    let (dir, wanted) = (Path::new(&dir), env::var(POINT).unwrap());
    let from = kept(dir);
    let first = from.as_ref().map_or(0, |checkpoint| checkpoint.progress.steps);
    let mut pipeline = pipeline(env::var(STAGES).unwrap().parse().unwrap(), from);
    let mut store = store(dir);
    for step in first..first + 3 {
        pipeline.step(batch(step)).unwrap();
        let mut at = |point: WritePoint| {
            if step > first && format!("{point:?}") == wanted {
                Command::new("kill").args(["-9", &process::id().to_string()]).status().unwrap();
                thread::park(); // the signal kills the parked process
            }
        };
        store.save_observed(&pipeline.checkpoint().unwrap(), &mut at).unwrap();
    }
    panic!("no one killed the training");
}

/// Returns the names of all points of saving a checkpoint at which a test can kill the process. Some belong to the
/// removal of an old checkpoint.
fn points() -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut pipeline, mut points) = (store(dir.path()), pipeline(1, None), Vec::new());
    for step in 0..3 {
        points.clear();
        pipeline.step(batch(step)).unwrap();
        let checkpoint = pipeline.checkpoint().unwrap();
        store.save_observed(&checkpoint, &mut |point| points.push(format!("{point:?}"))).unwrap();
    }
    points
}

#[test]
fn a_training_killed_at_every_point_of_a_write_resumes_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let points = points();
    let (mut kills, mut last) = (0, 0);
    for _ in 0..ROUNDS {
        for point in &points {
            let stages = 1 + kills % 3;
            let output = Command::new(env::current_exe().unwrap())
                .args(["--exact", "kills::child_training", "--ignored", "--nocapture"])
                .envs([(DIR, dir.path().to_str().unwrap()), (POINT, point), (STAGES, &stages.to_string())])
                .output()
                .unwrap();
            assert_eq!(output.status.signal(), Some(SIGKILL), "{point}: {}", String::from_utf8_lossy(&output.stderr));
            let steps = kept(dir.path()).unwrap().progress.steps;
            assert!((last + 1..=last + 2).contains(&steps), "{point}: {last} steps were kept, and then {steps}");
            (kills, last) = (kills + 1, steps);
        }
    }
    let mut undisturbed = pipeline(1, None);
    (0..last).for_each(|step| drop(undisturbed.step(batch(step)).unwrap()));
    assert!(kept(dir.path()).unwrap() == undisturbed.checkpoint().unwrap(), "other bits after {last} steps");
    println!("{kills} kills of a training, at {} points, over {last} steps", points.len());
    assert!(kills >= 200, "{kills} kills");
}
