//! Tests a save that fails after the rename of the new checkpoint, because the folder of checkpoints cannot be synced.
//!
//! The test moves the folder away for a moment, so that the sync and the undo fail in the operating system itself.

use std::error::Error;
use std::fs;
use std::io;
use std::path::PathBuf;

use stageline_checkpoint::{CheckpointError, Store, WritePoint};

use crate::{error_texts, toy};

/// A test's folder of checkpoints, with a checkpoint of step 1. The store keeps only the latest checkpoint.
struct Folder {
    root: tempfile::TempDir,
    dir: PathBuf,
    store: Store,
}

impl Folder {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("kept");
        let mut store = toy::store(&dir, 1);
        store.save(&toy::checkpoint(1)).unwrap();
        Self { root, dir, store }
    }

    /// Saves a checkpoint of step 2. Returns the result and the fault-injection points that the save reported, such as
    /// the point just before a rename.
    ///
    /// To make operations fail, the folder of checkpoints is moved away at the points for which `away` is true. At all
    /// other points it is in its place.
    fn save(&mut self, away: impl Fn(WritePoint) -> bool) -> (Result<PathBuf, CheckpointError>, Vec<WritePoint>) {
        let (dir, aside) = (&self.dir, self.root.path().join("aside"));
        let (mut points, mut is_away) = (Vec::new(), false);
        let mut at = |point| {
            points.push(point);
            if away(point) != is_away {
                let (from, to) = if is_away { (&aside, dir) } else { (dir, &aside) };
                fs::rename(from, to).unwrap();
                is_away = !is_away;
            }
        };
        let saved = self.store.save_observed(&toy::checkpoint(2), &mut at);
        if is_away {
            fs::rename(&aside, dir).unwrap();
        }
        (saved.inspect_err(error_texts::check), points)
    }

    /// Returns the names of the checkpoints in the test's folder, without leftovers of interrupted saves.
    fn checkpoints(&self) -> Vec<String> {
        let mut names = toy::names(&self.dir);
        names.retain(|name| !name.starts_with('.'));
        names
    }

    fn leftovers(&self) -> usize {
        toy::names(&self.dir).iter().filter(|name| name.starts_with(".writing-")).count()
    }
}

fn is_failed_sync(error: &CheckpointError, folder: &Folder) -> bool {
    matches!(error, CheckpointError::Write { doing: "sync", path, source }
        if *path == folder.dir && source.kind() == io::ErrorKind::NotFound)
}

#[test]
fn a_failed_sync_undoes_the_rename_and_leaves_earlier_checkpoints() {
    let mut folder = Folder::new();
    let (saved, points) = folder.save(|point| point == WritePoint::SyncFolder);
    let error = saved.unwrap_err();
    assert!(is_failed_sync(&error, &folder), "{error}");
    assert_eq!(toy::names(&folder.dir), [".lock", "000001-step-1"]);
    assert_eq!(toy::read(&folder.dir).unwrap(), toy::checkpoint(1));
    assert!(points.ends_with(&[
        WritePoint::Rename,
        WritePoint::SyncFolder,
        WritePoint::UndoRename,
        WritePoint::SyncUndo
    ]));
    assert_eq!(folder.store.save(&toy::checkpoint(2)).unwrap(), folder.dir.join("000002-step-2"));
    assert_eq!(toy::names(&folder.dir), [".lock", "000002-step-2"]);
}

#[test]
fn an_undo_that_is_not_synced_keeps_the_files_until_the_folder_can_be_synced() {
    for reopened in [false, true] {
        let mut folder = Folder::new();
        let (saved, _) = folder.save(|point| matches!(point, WritePoint::SyncFolder | WritePoint::SyncUndo));
        let error = saved.unwrap_err();
        assert!(is_failed_sync(&error, &folder), "{error}");
        assert_eq!((folder.checkpoints(), folder.leftovers()), (vec!["000001-step-1".to_owned()], 1));
        assert_eq!(toy::read(&folder.dir).unwrap(), toy::checkpoint(1));
        if reopened {
            drop(folder.store);
            folder.store = toy::store(&folder.dir, 1);
            assert_eq!(toy::names(&folder.dir), [".lock", "000001-step-1"]);
        }
        folder.store.save(&toy::checkpoint(3)).unwrap();
        assert_eq!(toy::names(&folder.dir), [".lock", "000002-step-3"]);
        assert_eq!(toy::read(&folder.dir).unwrap(), toy::checkpoint(3));
    }
}

#[test]
fn an_undo_that_fails_is_an_error_of_its_own_and_nothing_is_pruned() {
    let mut folder = Folder::new();
    let (saved, points) = folder.save(|point| matches!(point, WritePoint::SyncFolder | WritePoint::UndoRename));
    let error = saved.unwrap_err();
    assert_eq!(
        error.to_string().replace(&folder.dir.display().to_string(), "DIR"),
        "DIR/000002-step-2 is complete, but a power loss may remove it: its folder cannot be synced; check the disk, \
         then write another checkpoint; earlier checkpoints are untouched"
    );
    assert!(error.source().unwrap().is::<io::Error>());
    let CheckpointError::NotDurable { published, source, undo } = error else { panic!("{error}") };
    assert_eq!(published, folder.dir.join("000002-step-2"));
    assert_eq!((source.kind(), undo.kind()), (io::ErrorKind::NotFound, io::ErrorKind::NotFound));
    assert_eq!(toy::names(&folder.dir), [".lock", "000001-step-1", "000002-step-2"]);
    assert_eq!(toy::read(&folder.dir).unwrap(), toy::checkpoint(2));
    assert_eq!(toy::read(&folder.dir.join("000001-step-1")).unwrap(), toy::checkpoint(1));
    assert_eq!(points.last(), Some(&WritePoint::UndoRename));
    folder.store.save(&toy::checkpoint(3)).unwrap();
    assert_eq!(toy::names(&folder.dir), [".lock", "000003-step-3"], "the next save prunes");
}
