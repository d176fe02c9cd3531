//! Tests which checkpoint of a folder is opened. No older checkpoint is opened silently, and a reader beside a live
//! writer opens a complete one.

use std::fs;
use std::os::unix::fs::symlink;
use std::thread;

use stageline_checkpoint::{CheckpointError, Saved};

use crate::{error_texts, toy};

#[test]
fn a_link_or_file_with_the_name_of_the_latest_checkpoint_is_refused() {
    let (dir, latest) = toy::two();
    let elsewhere = toy::quick_folder();
    let moved = elsewhere.path().join("moved");
    fs::rename(&latest, &moved).unwrap();
    symlink(&moved, &latest).unwrap();
    let error = toy::read(dir.path()).unwrap_err();
    assert!(matches!(&error, CheckpointError::LatestIsNoFolder { path, .. } if *path == latest), "{error}");
    assert!(error.to_string().contains("is a symbolic link and not a folder; give the path of the checkpoint"));
    // The checkpoint can still be read through the link and at its new path.
    assert_eq!(toy::read(&latest).unwrap(), toy::checkpoint(20));
    assert_eq!(toy::read(&moved).unwrap(), toy::checkpoint(20));

    fs::remove_file(&latest).unwrap();
    fs::write(&latest, "a file").unwrap();
    let error = toy::read(dir.path()).unwrap_err();
    assert!(error.to_string().contains("is a file and not a folder"), "{error}");
    fs::remove_file(&latest).unwrap();
    assert_eq!(toy::read(dir.path()).unwrap(), toy::checkpoint(10));
}

#[test]
fn a_checkpoint_that_is_pruned_after_it_was_opened_is_removed_and_not_damaged() {
    let dir = toy::quick_folder();
    let mut store = toy::store(dir.path(), 1);
    let first = store.save(&toy::checkpoint(1)).unwrap();
    let saved = Saved::open(dir.path()).unwrap();
    store.save(&toy::checkpoint(2)).unwrap();
    let error = saved.read().inspect_err(error_texts::check).unwrap_err();
    assert!(matches!(&error, CheckpointError::Removed { path } if *path == first), "{error}");
    assert!(matches!(Saved::open(&first), Err(CheckpointError::PathNotFound { .. })));
}

/// Tests a reader beside a writer that keeps only the latest checkpoint: the reader never reports a damaged checkpoint.
#[test]
fn a_reader_beside_a_live_writer_sees_no_damage() {
    let dir = toy::quick_folder();
    let mut store = toy::store(dir.path(), 1);
    store.save(&toy::checkpoint(0)).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| (1..300).for_each(|steps| drop(store.save(&toy::checkpoint(steps)).unwrap())));
        while !writer.is_finished() {
            match toy::read(dir.path()) {
                Ok(checkpoint) => assert_eq!(checkpoint, toy::checkpoint(checkpoint.progress.steps)),
                Err(error) => assert!(matches!(error, CheckpointError::Removed { .. }), "{error}"),
            }
        }
    });
}
