//! Saves checkpoints into a folder: writes a new one, publishes it by a rename, and removes old ones.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{io, process};

use crate::disk;
use crate::error::CheckpointError;
use crate::format::checkpoint::Checkpoint;
use crate::format::folder::{self, CheckpointName, is_being_removed, is_being_written};
use crate::format::names::{LOCK, WRITING};
use crate::open::without_waiting;
use crate::write::plan::Plan;
use crate::write::write_point::WritePoint;
use crate::write::{files, prune};

/// A folder where this process saves checkpoints and keeps only the latest ones. The store locks the folder until it is
/// dropped, so that no other process writes into it.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    keep: NonZero<usize>,
    /// Sequence numbers of abandoned checkpoints, which were saved after the one that this run resumed from. Pruning
    /// removes them before older checkpoints.
    abandoned: Range<u64>,
    /// The lock file of the folder of checkpoints. It is locked until the store is dropped or the process ends, even if
    /// the process is killed.
    lock: File,
}

impl Store {
    /// Creates the folder `dir`, locks it against other stores, and removes the temporary folders of killed writers.
    ///
    /// When a save is complete, old checkpoints are removed until the `keep` latest remain;
    /// [`resuming`](Self::resuming) changes which ones are removed first. An empty path is the current folder.
    ///
    /// # Errors
    /// - [`CheckpointError::InUse`] if another store has locked the folder.
    /// - [`CheckpointError::InTheWay`] if the path, or one of its parents, is something other than a folder, such as a
    ///   file.
    /// - [`CheckpointError::Write`] if the folder cannot be written.
    pub fn open(dir: &Path, keep: NonZero<usize>) -> Result<Self, CheckpointError> {
        let dir = disk::or_here(dir);
        create(dir)?;
        let path = dir.join(LOCK);
        let lock = without_waiting(OpenOptions::new().create(true).truncate(false).write(true)).open(&path);
        let lock = lock.map_err(CheckpointError::write("open", &path))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => CheckpointError::InUse { path: dir.to_path_buf() },
            TryLockError::Error(source) => CheckpointError::write("lock", &path)(source),
        })?;
        remove_leftovers(dir)?;
        Ok(Self { dir: dir.to_path_buf(), keep, abandoned: 0..0, lock })
    }

    /// Tells the store that the run resumes from the checkpoint at the path `resumed`, in the store's folder.
    /// Checkpoints saved after `resumed` count as abandoned. Pruning removes them first and then the oldest, so that
    /// the run can resume from `resumed` again. Nothing counts as abandoned if `resumed` does not end with a checkpoint
    /// name, or if the store's next sequence number cannot be determined.
    #[must_use]
    pub fn resuming(mut self, resumed: &Path) -> Self {
        if let (Some(resumed), Ok(next)) = (CheckpointName::parse(resumed), self.next_sequence()) {
            self.abandoned = resumed.sequence.saturating_add(1)..next;
        }
        self
    }

    /// Saves a checkpoint: writes it into a temporary folder, renames the folder to its final name, and then removes
    /// old checkpoints. Returns the path of the new checkpoint.
    ///
    /// # Errors
    /// After most errors the folder has the same checkpoints as before. There are two exceptions:
    ///
    /// - [`CheckpointError::NotDurable`]: the new checkpoint is complete and has its name, but the folder could not be
    ///   synced, and the rename could not be undone. A power loss may remove the new checkpoint. No old one is removed.
    ///   The next successful save makes this checkpoint durable too, and then removes old ones.
    /// - [`CheckpointError::Prune`]: the new checkpoint is complete and durable, but an old one could not be removed.
    ///
    /// If the folder cannot be synced after the rename, the rename is undone, and the error is
    /// [`CheckpointError::Write`]. If the undo cannot be synced either, a power loss may bring back the new checkpoint,
    /// which is complete in that case. A temporary folder may remain; the next save or the next store removes it.
    ///
    /// A checkpoint is rejected before anything is written in these cases:
    ///
    /// - A value is not finite.
    /// - A tensor's number of bytes does not match its dtype and shape.
    /// - A tensor has the reserved name `__metadata__`.
    /// - The [`Progress`](crate::Progress) is outside its limits.
    pub fn save(&mut self, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
        self.save_observed(checkpoint, &mut |_| {})
    }

    /// Saves a checkpoint like [`save`](Self::save), for tests that simulate a crash. Calls `at` with each
    /// fault-injection point: just before every operation that changes what a crash would leave on disk, and at the
    /// end.
    ///
    /// # Errors
    /// Returns the same errors as [`save`](Self::save).
    pub fn save_observed(
        &mut self,
        checkpoint: &Checkpoint,
        at: &mut dyn FnMut(WritePoint),
    ) -> Result<PathBuf, CheckpointError> {
        let plan = Plan::new(checkpoint)?;
        let published = self.publish(&plan, at)?;
        prune::prune(&self.dir, self.keep, &self.abandoned, &published, at)?;
        at(WritePoint::Done);
        Ok(published)
    }

    /// Writes the validated checkpoint `plan` under a temporary name, renames it to its final name, and returns the
    /// final path. Calls `at` with each fault-injection point ([`WritePoint`]).
    fn publish(&self, plan: &Plan, at: &mut dyn FnMut(WritePoint)) -> Result<PathBuf, CheckpointError> {
        let name = CheckpointName { sequence: self.next_sequence()?, steps: plan.checkpoint.progress.steps };
        let temporary = self.dir.join(format!("{WRITING}{}-{:06}", process::id(), name.sequence));
        let target = self.dir.join(name.to_text());
        remove_leftover(&self.dir, &temporary)?;
        let written = files::write(plan, &temporary, at).and_then(|()| {
            at(WritePoint::Rename);
            fs::rename(&temporary, &target).map_err(CheckpointError::write("rename a finished checkpoint to", &target))
        });
        if let Err(error) = written {
            // An error of this removal is ignored, because the write error says more; the next store tries the removal
            // again.
            let _ = disk::remove(&temporary);
            return Err(error);
        }
        at(WritePoint::SyncFolder);
        match disk::sync_folder(&self.dir) {
            Ok(()) => Ok(target),
            Err(source) => Err(self.undo(target, &temporary, source, at)),
        }
    }

    /// Undoes a new checkpoint's rename from `temporary` to `published`, because the store's folder could not be synced
    /// (error `source`). Returns the error of the save: [`CheckpointError::Write`], or [`CheckpointError::NotDurable`]
    /// if the rename cannot be undone.
    fn undo(
        &self,
        published: PathBuf,
        temporary: &Path,
        source: io::Error,
        at: &mut dyn FnMut(WritePoint),
    ) -> CheckpointError {
        at(WritePoint::UndoRename);
        if let Err(undo) = fs::rename(&published, temporary) {
            return CheckpointError::NotDurable { published, source, undo };
        }
        at(WritePoint::SyncUndo);
        // An error of this removal is ignored, because the sync error says more; the next save or store tries the
        // removal again.
        let _ = remove_leftover(&self.dir, temporary);
        CheckpointError::write("sync", &self.dir)(source)
    }

    /// Returns the sequence number for a new checkpoint: the highest number in the folder plus one, or 1 in a folder
    /// without checkpoints. Files and links with a checkpoint name count too. Returns [`CheckpointError::LastNumber`]
    /// if the highest number is 2^64 - 1.
    ///
    /// The numbers of abandoned checkpoints are not reused, even if someone has moved such a checkpoint away.
    fn next_sequence(&self) -> Result<u64, CheckpointError> {
        let mut found = folder::list(&self.dir).map_err(CheckpointError::write("list", &self.dir))?;
        let next = match found.pop() {
            Some(last) => last.name.sequence.checked_add(1).ok_or(CheckpointError::LastNumber { path: last.path })?,
            None => 1,
        };
        Ok(next.max(self.abandoned.end))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Closing the file is not enough. If another thread is starting a process, that process has a copy of the open
        // file for a moment, and the copy would hold the lock a little longer.
        let _ = self.lock.unlock();
    }
}

/// Creates the folder `dir` and its missing parents, and syncs their names to disk. Returns
/// [`CheckpointError::InTheWay`] if the path, or one of its parents, is something other than a folder.
fn create(dir: &Path) -> Result<(), CheckpointError> {
    let missing: Vec<_> =
        dir.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).collect();
    fs::create_dir_all(dir).map_err(|source| match disk::in_the_way(dir) {
        Some((path, found)) => CheckpointError::InTheWay { path, found },
        None => CheckpointError::write("create the folder", dir)(source),
    })?;
    for parent in missing.into_iter().filter_map(Path::parent).map(disk::or_here) {
        disk::sync_folder(parent).map_err(CheckpointError::write("sync", parent))?;
    }
    Ok(())
}

/// Removes what killed writers left behind in the folder `dir`: temporary folders of incomplete checkpoints
/// (`.writing-...`), and old checkpoints that were being removed (`.removing-...`).
fn remove_leftovers(dir: &Path) -> Result<(), CheckpointError> {
    for entry in fs::read_dir(dir).map_err(CheckpointError::write("list", dir))? {
        let entry = entry.map_err(CheckpointError::write("list", dir))?;
        let name = entry.file_name();
        if is_being_written(&name) || is_being_removed(&name) {
            remove_leftover(dir, &entry.path())?;
        }
    }
    Ok(())
}

/// Removes the temporary folder at `path` in `dir`, which an interrupted save or removal may have left behind. Does
/// nothing if it does not exist.
///
/// Syncs `dir` first, because a power loss could otherwise undo an unsynced rename, and the half-removed folder would
/// have a checkpoint name again.
fn remove_leftover(dir: &Path, path: &Path) -> Result<(), CheckpointError> {
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(());
    }
    disk::sync_folder(dir).map_err(CheckpointError::write("sync", dir))?;
    disk::remove(path).map_err(CheckpointError::write("remove", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_store_is_unlocked_though_a_child_process_has_a_copy_of_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), NonZero::<usize>::MIN).unwrap();
        let _copy = store.lock.try_clone().unwrap();
        drop(store);
        Store::open(dir.path(), NonZero::<usize>::MIN).unwrap();
    }
}
