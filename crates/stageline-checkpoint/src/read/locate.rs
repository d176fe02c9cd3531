//! Resolves a path to a checkpoint folder: the path itself, or the latest checkpoint in the folder at the path.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::disk;
use crate::error::CheckpointError;
use crate::format::folder::{self, CheckpointName};
use crate::format::names::{LOCK, MANIFEST};

/// Returns the path of the checkpoint folder to read: `path` itself if it is a checkpoint folder, or else the latest
/// checkpoint in the folder `path`.
///
/// A folder with a checkpoint name counts as a checkpoint even without a manifest, so that damage is reported. A file
/// or link with the name of the latest checkpoint is an error, because an older checkpoint must not be read silently in
/// its place.
pub(crate) fn locate(path: &Path) -> Result<PathBuf, CheckpointError> {
    let owned = || path.to_path_buf();
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => CheckpointError::PathNotFound { path: owned() },
        _ => match disk::in_the_way(path) {
            Some((part, _)) => CheckpointError::NotAFolder { path: part },
            None => CheckpointError::Look { path: owned(), source },
        },
    };
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return Err(CheckpointError::NotAFolder { path: owned() });
    }
    let exists = |name: &str| fs::symlink_metadata(path.join(name)).is_ok();
    if CheckpointName::parse(path).is_some() || exists(MANIFEST) {
        return Ok(owned());
    }
    if let Some(latest) = folder::list(path).map_err(failed)?.pop() {
        return if latest.is_folder { Ok(latest.path) } else { Err(no_folder(latest.path)) };
    }
    if exists(LOCK) || fs::read_dir(path).map_err(failed)?.next().is_none() {
        return Err(CheckpointError::NoCheckpoint { path: owned() });
    }
    Err(CheckpointError::Neither { path: owned() })
}

/// Returns the error for the entry at `path`, which has the name of the latest checkpoint but is not a folder.
fn no_folder(path: PathBuf) -> CheckpointError {
    match fs::symlink_metadata(&path) {
        Ok(metadata) => CheckpointError::LatestIsNoFolder { found: disk::kind(&metadata), path },
        Err(source) => CheckpointError::Look { path, source },
    }
}
