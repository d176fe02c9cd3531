//! Tests the writer that saves checkpoints in the background.

use std::path::Path;

use stageline_checkpoint::{Checkpoint, CheckpointError, Writer};

use crate::toy;

fn writer(dir: &Path) -> Writer {
    Writer::new(toy::store(dir, 2)).unwrap()
}

fn not_finite(steps: u64) -> Checkpoint {
    let mut checkpoint = toy::checkpoint(steps);
    checkpoint.parameters.insert("head.w".to_owned(), toy::f32s(&[], f32::NAN));
    checkpoint
}

#[test]
fn each_write_returns_the_path_of_the_previous_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(dir.path());
    assert_eq!(writer.write(toy::checkpoint(1)).unwrap(), None);
    assert_eq!(writer.write(toy::checkpoint(2)).unwrap(), Some(dir.path().join("000001-step-1")));
    assert_eq!(writer.write(toy::checkpoint(3)).unwrap(), Some(dir.path().join("000002-step-2")));
    assert_eq!(writer.finish().unwrap(), Some(dir.path().join("000003-step-3")));
    assert_eq!(toy::read(dir.path()).unwrap(), toy::checkpoint(3));
}

#[test]
fn finish_without_a_write_returns_none() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(writer(dir.path()).finish().unwrap(), None);
}

#[test]
fn an_error_is_returned_by_the_next_write_and_the_writer_continues() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(dir.path());
    writer.write(not_finite(1)).unwrap();
    assert!(matches!(writer.write(toy::checkpoint(2)), Err(CheckpointError::NotFinite { .. })));
    assert_eq!(writer.write(toy::checkpoint(3)).unwrap(), None);
    assert_eq!(writer.finish().unwrap(), Some(dir.path().join("000001-step-3")));
}

#[test]
fn an_error_is_returned_by_finish() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(dir.path());
    writer.write(not_finite(1)).unwrap();
    assert!(matches!(writer.finish(), Err(CheckpointError::NotFinite { .. })));
}

#[test]
fn a_dropped_writer_has_saved_and_releases_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    for steps in 1..10 {
        let mut writer = writer(dir.path());
        writer.write(toy::checkpoint(steps)).unwrap();
        drop(writer);
        assert_eq!(toy::read(dir.path()).unwrap(), toy::checkpoint(steps));
    }
}
