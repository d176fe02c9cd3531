//! Removes old checkpoints in such an order that a crash never leaves a half-removed one under a checkpoint name.

use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::disk;
use crate::error::CheckpointError;
use crate::format::folder::{self, CheckpointName, is_being_removed};
use crate::format::names::REMOVING;
use crate::write::write_point::WritePoint;

/// Removes checkpoints in the folder `dir` until only `keep` remain: first those with a sequence number in `abandoned`
/// (saved after the checkpoint that this run resumed from), then the oldest. The new checkpoint at `published` always
/// stays, and is named in errors.
///
/// Each old checkpoint is renamed first, and the rename is synced, so that a half-removed folder never has a checkpoint
/// name. If one checkpoint's files cannot be removed, the others are removed nevertheless, and the first error is
/// returned. Remains of earlier removals are removed too, if possible. Calls `at` with each fault-injection point
/// ([`WritePoint`]).
pub(crate) fn prune(
    dir: &Path,
    keep: NonZero<usize>,
    abandoned: &Range<u64>,
    published: &Path,
    at: &mut dyn FnMut(WritePoint),
) -> Result<(), CheckpointError> {
    let failed = |doing: &'static str, path: &Path| {
        let (published, path) = (published.to_path_buf(), path.to_path_buf());
        move |source: io::Error| CheckpointError::Prune { published, doing, path, source }
    };
    let mut checkpoints = folder::checkpoints(dir).map_err(failed("list", dir))?;
    let is_abandoned =
        |path: &PathBuf| CheckpointName::parse(path).is_some_and(|name| abandoned.contains(&name.sequence));
    let surplus = checkpoints.len().saturating_sub(keep.get());
    checkpoints.retain(|path| path.file_name() != published.file_name()); // the new checkpoint always stays
    checkpoints.sort_by_key(|path| !is_abandoned(path)); // the sort is stable, so each part stays ordered by age
    checkpoints.truncate(surplus);
    let left = leftovers(dir).map_err(failed("list", dir))?;
    for (old, path) in checkpoints.iter().enumerate() {
        let hidden = hidden(dir, path);
        disk::remove(&hidden).map_err(failed("remove", &hidden))?; // an earlier attempt may have left it
        at(WritePoint::HideOld { old });
        fs::rename(path, &hidden).map_err(failed("rename", path))?;
    }
    if !checkpoints.is_empty() {
        at(WritePoint::SyncHidden);
        disk::sync_folder(dir).map_err(failed("sync", dir))?;
    }
    let mut removed = Ok(());
    for (old, hidden) in checkpoints.iter().map(|path| hidden(dir, path)).enumerate() {
        at(WritePoint::RemoveOld { old });
        removed = removed.and(disk::remove(&hidden).map_err(failed("remove", &hidden)));
    }
    // Errors are ignored here: the earlier save has reported them, and the next save tries again to remove these
    // remains.
    left.iter().for_each(|hidden| drop(disk::remove(hidden)));
    removed
}

/// Returns the remains of earlier removals in `dir`: old checkpoints named `.removing-...`, which an earlier save
/// renamed but could not remove completely. They can be removed immediately, because their renames are already synced.
fn leftovers(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if is_being_removed(&entry.file_name()) {
            left.push(entry.path());
        }
    }
    Ok(left)
}

/// Returns the hidden path in `dir`, such as `.removing-000005-step-50`, that the checkpoint at `path` is renamed to
/// before its files are removed.
fn hidden(dir: &Path, path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let mut hidden = std::ffi::OsString::from(REMOVING);
    hidden.push(name);
    dir.join(hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_checkpoint_stays_even_with_an_abandoned_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let names = ["000001-step-1", "000002-step-2", "000003-step-3"];
        names.iter().for_each(|name| fs::create_dir(path(name)).unwrap());
        let one = NonZero::<usize>::MIN;
        prune(dir.path(), one, &(2..4), &path(names[1]), &mut |_| {}).unwrap();
        assert_eq!(folder::checkpoints(dir.path()).unwrap(), [path(names[1])]);
    }
}
