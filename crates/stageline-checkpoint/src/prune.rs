//! Old checkpoints go.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::error::CheckpointError;
use crate::names::REMOVING;
use crate::point::WritePoint;
use crate::{disk, folder};

/// Removes all checkpoints in `dir` but the `keep` latest, and nothing else.
///
/// Each loses its name first, and for good, so that no half of one is ever found under it.
pub(crate) fn prune(
    dir: &Path,
    keep: NonZero<usize>,
    published: &Path,
    at: &mut dyn FnMut(WritePoint),
) -> Result<(), CheckpointError> {
    let refused = |doing: &'static str, path: &Path| {
        let (published, path) = (published.to_path_buf(), path.to_path_buf());
        move |source: io::Error| CheckpointError::Prune { published, doing, path, source }
    };
    let mut checkpoints = folder::checkpoints(dir).map_err(refused("list", dir))?;
    checkpoints.truncate(checkpoints.len().saturating_sub(keep.get()));
    if checkpoints.is_empty() {
        return Ok(());
    }
    for (old, path) in checkpoints.iter().enumerate() {
        let hidden = hidden(dir, path);
        disk::remove(&hidden).map_err(refused("remove", &hidden))?; // of an earlier attempt
        at(WritePoint::HideOld { old });
        fs::rename(path, &hidden).map_err(refused("rename", path))?;
    }
    at(WritePoint::SyncHidden);
    disk::sync_folder(dir).map_err(refused("sync", dir))?;
    for (old, path) in checkpoints.iter().enumerate() {
        let hidden = hidden(dir, path);
        at(WritePoint::RemoveOld { old });
        disk::remove(&hidden).map_err(refused("remove", &hidden))?;
    }
    Ok(())
}

fn hidden(dir: &Path, path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let mut hidden = std::ffi::OsString::from(REMOVING);
    hidden.push(name);
    dir.join(hidden)
}
