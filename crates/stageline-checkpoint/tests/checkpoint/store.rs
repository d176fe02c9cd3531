//! Tests a store (a folder into which checkpoints are saved): its names, its lock, its pruning, and other things in its
//! folder.

use std::env;
use std::fs;
use std::num::NonZero;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use stageline_checkpoint::{CheckpointError, Saved, Store, Tensor, WritePoint};
use tempfile::TempDir;

use crate::toy;

#[test]
fn the_latest_are_kept_in_the_order_of_publication() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = toy::store(dir.path(), 3);
    for steps in [10, 20, 30, 5, 6] {
        store.save(&toy::checkpoint(steps)).unwrap();
    }
    assert_eq!(toy::names(dir.path()), [".lock", "000003-step-30", "000004-step-5", "000005-step-6"]);
    assert_eq!(toy::read(dir.path()).unwrap(), toy::checkpoint(6));
    drop(store);
    toy::store(dir.path(), 1).save(&toy::checkpoint(7)).unwrap();
    assert_eq!(toy::names(dir.path()), [".lock", "000006-step-7"]);
}

/// Returns the folder of a run that has saved checkpoints after 10, 20 and 30 steps.
fn after_30_steps() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut store = toy::store(dir.path(), 3);
    for steps in [10, 20, 30] {
        store.save(&toy::checkpoint(steps)).unwrap();
    }
    dir
}

/// Tests a run that resumes from an older checkpoint. Pruning removes the abandoned later checkpoints first, and the
/// resumed checkpoint afterwards.
#[test]
fn abandoned_checkpoints_are_removed_before_the_one_to_go_back_to() {
    let dir = after_30_steps();
    let mut store = toy::store(dir.path(), 3).resuming(&dir.path().join("000001-step-10"));
    for (steps, left) in [
        (15, ["000001-step-10", "000003-step-30", "000004-step-15"]),
        (25, ["000001-step-10", "000004-step-15", "000005-step-25"]),
        (35, ["000004-step-15", "000005-step-25", "000006-step-35"]),
    ] {
        store.save(&toy::checkpoint(steps)).unwrap();
        assert_eq!(toy::names(dir.path())[1..], left);
    }
}

/// Tests abandoned checkpoints that are deleted by hand before the first save. Their sequence numbers are not used
/// again, so pruning does not mistake new checkpoints for abandoned ones.
#[test]
fn new_checkpoints_stay_though_the_abandoned_ones_were_moved_away() {
    for left in [vec!["000001-step-10"], vec![]] {
        let dir = after_30_steps();
        let mut store = toy::store(dir.path(), 1).resuming(&dir.path().join("000001-step-10"));
        for name in ["000001-step-10", "000002-step-20", "000003-step-30"] {
            if !left.contains(&name) {
                fs::remove_dir_all(dir.path().join(name)).unwrap();
            }
        }
        for (steps, name) in [(15, "000004-step-15"), (25, "000005-step-25")] {
            assert_eq!(store.save(&toy::checkpoint(steps)).unwrap(), dir.path().join(name));
            assert_eq!(toy::names(dir.path()), [".lock", name]);
        }
    }
}

#[test]
fn things_with_other_names_stay() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = [
        "000001-step-1.bak",
        "0000001-step-1",
        "000001-step-01",
        "7-step-7",
        "best",
        "writing-1",
        "step-3",
        ".writing-notes",
        ".writing-1-",
        ".removing-000001-step-01",
        ".removing-old",
    ];
    for name in foreign {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("manifest.json"), "{}").unwrap();
    }
    fs::write(dir.path().join("000002-step-2"), "a file").unwrap();
    fs::write(dir.path().join("notes.txt"), "notes").unwrap();
    symlink("best", dir.path().join("000003-step-3")).unwrap();
    let before = toy::names(dir.path());
    let mut store = toy::store(dir.path(), 1);
    for steps in 4..7 {
        store.save(&toy::checkpoint(steps)).unwrap();
    }
    let mut expected = [before, vec![".lock".to_owned(), "000006-step-6".to_owned()]].concat();
    expected.sort();
    assert_eq!(toy::names(dir.path()), expected);
    assert_eq!(Saved::open(dir.path()).unwrap().path(), dir.path().join("000006-step-6"));
    assert_eq!(fs::read(dir.path().join("000002-step-2")).unwrap(), b"a file");
    assert!(foreign.iter().all(|name| fs::read(dir.path().join(name).join("manifest.json")).unwrap() == b"{}"));
}

#[test]
fn a_second_store_is_refused_until_the_first_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let first = toy::store(dir.path(), 1);
    let error = Store::open(dir.path(), NonZero::<usize>::MIN).unwrap_err();
    assert!(matches!(&error, CheckpointError::InUse { path } if path == dir.path()), "{error}");
    drop(first);
    drop(toy::store(dir.path(), 1));
}

#[test]
fn a_second_store_removes_nothing_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = toy::store(dir.path(), 1);
    let mut refused = 0;
    let mut at = |_| refused += usize::from(Store::open(dir.path(), NonZero::<usize>::MIN).is_err());
    first.save_observed(&toy::checkpoint(1), &mut at).unwrap();
    assert!(refused > 10, "{refused}");
    assert_eq!(toy::read(dir.path()).unwrap(), toy::checkpoint(1));
}

#[test]
fn at_every_point_each_named_checkpoint_is_complete() {
    let dir = toy::quick_folder();
    let mut store = toy::store(dir.path(), 2);
    for steps in 1..6u64 {
        let mut published = steps - 1;
        let mut at = |point| {
            let visible: Vec<_> = toy::names(dir.path()).into_iter().filter(|name| !name.starts_with('.')).collect();
            for name in &visible {
                let checkpoint = toy::read(&dir.path().join(name)).unwrap();
                assert_eq!(checkpoint, toy::checkpoint(checkpoint.progress.steps), "{name} at {point:?}");
            }
            published = if point == WritePoint::SyncFolder { steps } else { published };
            let hidden = matches!(point, WritePoint::SyncHidden | WritePoint::RemoveOld { .. } | WritePoint::Done);
            let oldest = if hidden { steps.saturating_sub(1) } else { steps.saturating_sub(2) }.max(1);
            let expected: Vec<_> = (oldest..=published).map(|steps| format!("{steps:06}-step-{steps}")).collect();
            assert!(visible == expected || matches!(point, WritePoint::HideOld { .. }), "{visible:?} at {point:?}");
        };
        store.save_observed(&toy::checkpoint(steps), &mut at).unwrap();
    }
}

#[test]
fn leftovers_are_removed_whatever_they_are() {
    let (dir, _) = toy::two();
    fs::create_dir_all(dir.path().join(".writing-1-000003/optimizer")).unwrap();
    fs::rename(dir.path().join("000001-step-10"), dir.path().join(".removing-000001-step-10")).unwrap();
    fs::write(dir.path().join(".writing-2-000003"), "a file").unwrap();
    symlink("000002-step-20", dir.path().join(".writing-3-000003")).unwrap();
    drop(toy::store(dir.path(), 2));
    assert_eq!(toy::names(dir.path()), [".lock", "000002-step-20"]);
    assert_eq!(toy::read(dir.path()).unwrap(), toy::checkpoint(20));
}

/// Tests that a save removes an old checkpoint that an earlier save could not remove. The test itself creates the
/// folder that such a failure leaves.
#[test]
fn a_removal_that_failed_is_tried_again_by_the_next_save() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = toy::store(dir.path(), 2);
    for steps in 1..4 {
        fs::create_dir_all(dir.path().join(".removing-000001-step-9/optimizer")).unwrap();
        let path = store.save(&toy::checkpoint(steps)).unwrap();
        assert!(path.is_dir() && !toy::names(dir.path()).iter().any(|name| name.starts_with(".removing")));
    }
}

#[test]
fn folders_are_created_at_any_depth() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a/b/c");
    let path = toy::store(&deep, 1).save(&toy::checkpoint(1)).unwrap();
    assert_eq!(path, deep.join("000001-step-1"));
}

const HERE: &str = "STAGELINE_TEST_HERE";

/// Saves checkpoints to relative paths. This test does nothing by itself: the test of relative paths starts it in a
/// process with a working directory of its own.
#[test]
#[ignore = "is started by another test"]
fn child_in_a_folder() {
    if env::var_os(HERE).is_none() {
        return;
    }
    let here = Path::new("000001-step-1").parent().unwrap();
    let mut store = toy::store(here, 2);
    assert_eq!(store.save(&toy::checkpoint(1)).unwrap(), Path::new("./000001-step-1"));
    assert_eq!(Saved::open(here).unwrap().path(), Path::new("./000001-step-1"));
    store.save(&toy::checkpoint(2)).unwrap();
    assert_eq!(toy::read(here).unwrap(), toy::checkpoint(2));
    assert_eq!(toy::read(Path::new("000001-step-1")).unwrap(), toy::checkpoint(1));
    fs::remove_file("000002-step-2/manifest.json").unwrap();
    let older = "; resume from an older checkpoint, such as ./000001-step-1";
    for damaged in [here, Path::new("000002-step-2")] {
        let message = toy::read(damaged).unwrap_err().to_string();
        assert!(message.ends_with(older), "{message}");
    }
    let path = toy::store(Path::new("a/b"), 1).save(&toy::checkpoint(3)).unwrap();
    assert_eq!(path, Path::new("a/b/000001-step-3"));
}

#[test]
fn an_empty_path_is_the_current_folder() {
    let dir = tempfile::tempdir().unwrap();
    let child = ["--exact", "store::child_in_a_folder", "--ignored", "--nocapture"];
    let child = Command::new(env::current_exe().unwrap()).args(child).env(HERE, "1").current_dir(dir.path()).output();
    let child = child.unwrap();
    let output = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
    assert_eq!(toy::names(dir.path()), [".lock", "000001-step-1", "000002-step-2", "a"]);
}

#[test]
fn an_invalid_checkpoint_is_refused_and_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = toy::store(dir.path(), 1);
    store.save(&toy::checkpoint(1)).unwrap();
    let mut nan = toy::checkpoint(2);
    nan.parameters.insert("blocks.0.up.bias".to_owned(), toy::f32s(&[3], f32::INFINITY));
    let mut state = toy::checkpoint(2);
    state.optimizer.insert("head.w/momentum.moment_1".to_owned(), toy::f32s(&[2], f32::NAN));
    let mut short = toy::checkpoint(2);
    let bias = Tensor::new(stageline_checkpoint::Dtype::F32, vec![3], vec![0; 11].into());
    short.parameters.insert("blocks.0.up.bias".to_owned(), bias);
    let mut scale = toy::checkpoint(2);
    scale.progress.loss_scale.as_mut().unwrap().scale = 0.0;
    let mut steps = toy::checkpoint(2);
    steps.progress.steps = u64::MAX;
    let mut optimizer_steps = toy::checkpoint(2);
    optimizer_steps.progress.optimizer_steps = 3;
    for refused in [nan, state, short, scale, steps, optimizer_steps] {
        store.save(&refused).unwrap_err();
        assert_eq!(toy::names(dir.path()), [".lock", "000001-step-1"]);
    }
    assert_eq!(toy::read(dir.path()).unwrap(), toy::checkpoint(1));
}

#[test]
fn a_run_that_could_not_be_read_back_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut checkpoint = toy::checkpoint(1);
    let deep = (0..200).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
    checkpoint.run.insert("deep".to_owned(), deep);
    let error = toy::store(dir.path(), 1).save(&checkpoint).unwrap_err();
    assert!(matches!(error, CheckpointError::Manifest { .. }), "{error}");
    assert_eq!(toy::names(dir.path()), [".lock"]);
}

#[test]
fn a_save_after_the_highest_sequence_number_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(format!("{}-step-1", u64::MAX))).unwrap();
    let error = toy::store(dir.path(), 1).save(&toy::checkpoint(1)).unwrap_err();
    assert!(matches!(error, CheckpointError::LastNumber { .. }), "{error}");
}

#[test]
fn a_folder_that_is_gone_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let mut store = toy::store(&gone, 1);
    fs::remove_dir_all(&gone).unwrap();
    fs::write(&gone, "now a file").unwrap();
    let error = store.save(&toy::checkpoint(1)).unwrap_err();
    assert!(matches!(&error, CheckpointError::Write { path, .. } if *path == gone), "{error}");
    assert!(matches!(Store::open(&gone, NonZero::<usize>::MIN), Err(CheckpointError::InTheWay { .. })));
    assert_eq!(fs::read(Path::new(&gone)).unwrap(), b"now a file");
}
