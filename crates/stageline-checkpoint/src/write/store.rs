//! Saves checkpoints into a folder: write, publish by a rename, prune.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{io, process};

use crate::disk;
use crate::error::CheckpointError;
use crate::format::checkpoint::Checkpoint;
use crate::format::folder::{self, CheckpointName};
use crate::format::names::{LOCK, REMOVING, WRITING};
use crate::open::without_waiting;
use crate::write::plan::Plan;
use crate::write::write_point::WritePoint;
use crate::write::{files, prune};

/// A folder where this process saves checkpoints, and keeps only the latest ones. The folder is locked until the store
/// is dropped, so that no other process writes into it.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    keep: NonZero<usize>,
    /// The sequence numbers of the checkpoints that are later than the one that this run resumed from. They are removed
    /// before older ones.
    abandoned: Range<u64>,
    /// The lock file of a folder of checkpoints. It is locked until the store is dropped or the process ends, even if
    /// the process is killed.
    lock: File,
}

impl Store {
    /// Creates the folder `dir`, locks it against other stores, and removes the temporary folders of killed writers.
    ///
    /// When a new checkpoint is complete, only the `keep` latest checkpoints stay, unless [`resuming`](Self::resuming)
    /// changes the order of removal. An empty path is the current folder.
    ///
    /// # Errors
    /// - [`CheckpointError::InUse`] if another store has the lock.
    /// - [`CheckpointError::InTheWay`] if the path, or a part of it, is something other than a folder, such as a file.
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

    /// Tells the store that the run resumes from the checkpoint at the path `resumed`, in the folder of this store. The
    /// run abandons the checkpoints that were saved after `resumed`, and may have to resume from `resumed` again. When
    /// the store removes old checkpoints, it therefore removes the abandoned ones first, and then the oldest.
    #[must_use]
    pub fn resuming(mut self, resumed: &Path) -> Self {
        if let (Some(resumed), Ok(next)) = (CheckpointName::parse(resumed), self.next_sequence()) {
            self.abandoned = resumed.sequence.saturating_add(1)..next;
        }
        self
    }

    /// Writes a checkpoint into a temporary folder, renames the folder to its final name, and then removes old
    /// checkpoints. Returns the path of the new one.
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
    /// which is complete then. A temporary folder may remain; the next save or the next store removes it.
    ///
    /// A checkpoint is refused before anything is written in these cases:
    ///
    /// - A value is not finite.
    /// - The bytes of a tensor do not match its type and shape.
    /// - A tensor has the reserved name `__metadata__`.
    /// - The [`Progress`](crate::Progress) is outside its limits.
    pub fn save(&mut self, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
        self.save_observed(checkpoint, &mut |_| {})
    }

    /// Saves a checkpoint with the steps of [`save`](Self::save): it is written into a temporary folder, the folder is
    /// renamed, and old checkpoints are removed. Calls `at` just before every operation that changes what a crash would
    /// leave on disk, and once at the end. A test can simulate a crash at each of these points.
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

    /// Writes a checkpoint under a temporary name, renames it to its final name, and returns the final path.
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
            // An error of this removal is ignored, because the error of the write says more; the next store tries the
            // removal again.
            let _ = disk::remove(&temporary);
            return Err(error);
        }
        at(WritePoint::SyncFolder);
        match disk::sync_folder(&self.dir) {
            Ok(()) => Ok(target),
            Err(source) => Err(self.undo(target, &temporary, source, at)),
        }
    }

    /// Undoes the rename of a new checkpoint, because syncing the store's folder failed with the error `source`.
    /// Returns the error for the save: [`CheckpointError::Write`], or [`CheckpointError::NotDurable`] if the rename
    /// cannot be undone.
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
        // An error of this removal is ignored, because the error of the sync says more; the next save or store tries
        // the removal again.
        let _ = remove_leftover(&self.dir, temporary);
        CheckpointError::write("sync", &self.dir)(source)
    }

    /// Returns the sequence number for a new checkpoint: the highest number in the folder plus one, or 1 in a folder
    /// without checkpoints. Files and links with a checkpoint's name count too. Returns [`CheckpointError::LastNumber`]
    /// if the highest number is 2^64 - 1.
    ///
    /// The number is not one of an abandoned checkpoint, even if someone has moved that checkpoint away.
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
        // Closing the file is not enough. A process that another thread starts at this moment has a copy of it, and the
        // copy holds the lock a little longer.
        let _ = self.lock.unlock();
    }
}

/// Creates the folder `dir` and its missing parents, and makes their names durable. Returns
/// [`CheckpointError::InTheWay`] if a part of the path is something other than a folder.
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

/// Removes what killed writers left in the folder `dir`: temporary folders of incomplete checkpoints (`.writing-...`),
/// and old checkpoints that were being removed (`.removing-...`).
fn remove_leftovers(dir: &Path) -> Result<(), CheckpointError> {
    for entry in fs::read_dir(dir).map_err(CheckpointError::write("list", dir))? {
        let entry = entry.map_err(CheckpointError::write("list", dir))?;
        let name = entry.file_name();
        if [WRITING, REMOVING].iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes())) {
            remove_leftover(dir, &entry.path())?;
        }
    }
    Ok(())
}

/// Removes the temporary folder at `path` in `dir`, which an earlier save or removal may have left; does nothing if
/// there is none.
///
/// A power loss can undo a rename that was not synced. `dir` is therefore synced before any file is removed. Otherwise
/// the folder could get back the name of a checkpoint without all of its files.
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
