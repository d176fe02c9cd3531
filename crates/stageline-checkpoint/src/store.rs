//! A folder of checkpoints that this process writes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::{io, process};

use crate::checkpoint::Checkpoint;
use crate::error::CheckpointError;
use crate::folder::{self, Name};
use crate::names::{LOCK, REMOVING, WRITING};
use crate::plan::Plan;
use crate::point::WritePoint;
use crate::{disk, prune, write};

/// A folder of checkpoints that this process writes.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    keep: NonZero<usize>,
    /// Locked until the store is dropped or the process ends, in whatever way.
    lock: File,
}

impl Store {
    /// Makes the folder, takes its lock, and removes what killed writers left. Of the checkpoints in it, the `keep`
    /// latest stay when a new one is complete. An empty path is the current folder.
    ///
    /// # Errors
    /// [`CheckpointError::InUse`] if another store has the lock; [`CheckpointError::InTheWay`] if there is a file where
    /// the folder should be; [`CheckpointError::Write`] if the folder cannot be written.
    pub fn open(dir: &Path, keep: NonZero<usize>) -> Result<Self, CheckpointError> {
        let dir = disk::or_here(dir);
        make(dir)?;
        let path = dir.join(LOCK);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(CheckpointError::write("open", &path))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => CheckpointError::InUse { path: dir.to_path_buf() },
            TryLockError::Error(source) => CheckpointError::write("lock", &path)(source),
        })?;
        remove_leftovers(dir)?;
        Ok(Self { dir: dir.to_path_buf(), keep, lock })
    }

    /// Writes a checkpoint, publishes it, then prunes. Gives its path.
    ///
    /// # Errors
    /// The folder has the same checkpoints as before, except with two errors:
    ///
    /// - [`CheckpointError::NotDurable`]: the new checkpoint is complete and has its name, but the folder could not be
    ///   synced, and the name could not be taken back. A power loss may remove the new checkpoint. No old one is
    ///   removed; the next save that succeeds makes both durable and prunes.
    /// - [`CheckpointError::Prune`]: the new checkpoint is complete and durable, and an old one could not be removed.
    ///
    /// If the folder cannot be synced after the new checkpoint got its name, the name is taken back, and the error is
    /// [`CheckpointError::Write`]. If that cannot be synced either, a power loss may bring the new checkpoint back: it
    /// is complete then. A temporary folder may stay, which the next save or the next store removes.
    ///
    /// A tensor that is not finite, or whose length does not fit, is refused before anything is written, as is a
    /// [`Progress`](crate::Progress) from which training cannot go on.
    pub fn save(&mut self, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
        self.save_observed(checkpoint, &mut |_| {})
    }

    /// The same as [`save`](Self::save); `at` is told before every point at which a crash leaves something else behind.
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    pub fn save_observed(
        &mut self,
        checkpoint: &Checkpoint,
        at: &mut dyn FnMut(WritePoint),
    ) -> Result<PathBuf, CheckpointError> {
        let plan = Plan::of(checkpoint)?;
        let published = self.publish(&plan, at)?;
        prune::prune(&self.dir, self.keep, &published, at)?;
        at(WritePoint::Done);
        Ok(published)
    }

    fn publish(&self, plan: &Plan, at: &mut dyn FnMut(WritePoint)) -> Result<PathBuf, CheckpointError> {
        let name = Name { sequence: self.next_sequence()?, steps: plan.checkpoint.progress.steps };
        let temporary = self.dir.join(format!("{WRITING}{}-{:06}", process::id(), name.sequence));
        let target = self.dir.join(name.text());
        remove_leftover(&self.dir, &temporary)?;
        let written = write::write(plan, &temporary, at).and_then(|()| {
            at(WritePoint::Rename);
            fs::rename(&temporary, &target).map_err(CheckpointError::write("rename a finished checkpoint to", &target))
        });
        if let Err(error) = written {
            // The error of the write says more than one of the removal; the next store tries again.
            let _ = disk::remove(&temporary);
            return Err(error);
        }
        at(WritePoint::SyncFolder);
        match disk::sync_folder(&self.dir) {
            Ok(()) => Ok(target),
            Err(source) => Err(self.undo(target, &temporary, source, at)),
        }
    }

    /// Renames a new checkpoint back to its temporary folder, because the store's folder could not be synced. Returns
    /// the error of the save.
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
        // The error of the first sync says more than one of the removal; the next save or store tries again.
        let _ = remove_leftover(&self.dir, temporary);
        CheckpointError::write("sync", &self.dir)(source)
    }

    /// One more than the highest, whatever has that name.
    fn next_sequence(&self) -> Result<u64, CheckpointError> {
        let mut found = folder::list(&self.dir).map_err(CheckpointError::write("list", &self.dir))?;
        let Some(last) = found.pop() else { return Ok(1) };
        last.name.sequence.checked_add(1).ok_or(CheckpointError::LastNumber { path: last.path })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // To close the file is not enough: a process that another thread starts at this moment has a copy of it, which
        // holds the lock a little longer.
        let _ = self.lock.unlock();
    }
}

/// Makes a folder and those above it, and makes their names last.
fn make(dir: &Path) -> Result<(), CheckpointError> {
    let missing: Vec<_> =
        dir.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).collect();
    fs::create_dir_all(dir).map_err(|source| match disk::in_the_way(dir) {
        Some((path, found)) => CheckpointError::InTheWay { path, found },
        None => CheckpointError::write("make the folder", dir)(source),
    })?;
    for parent in missing.into_iter().filter_map(Path::parent).map(disk::or_here) {
        disk::sync_folder(parent).map_err(CheckpointError::write("sync", parent))?;
    }
    Ok(())
}

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

/// Removes a temporary folder that an earlier attempt left in `dir`, if there is one.
///
/// It may have had the name of a checkpoint, and on disk it may still have it. The folder is synced before files are
/// removed, so that a power loss cannot leave a part of them under that name.
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
