//! Helpers for folders and paths, shared by the reader and the writer of checkpoints. They remove entries, sync
//! folders, and describe an obstacle at a path.
//!
//! Input: paths and metadata. Output: removed or synced file system entries, and words for error messages. The code
//! here must not know the names or the contents of checkpoints, or follow a symbolic link when it removes something.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Removes whatever is at a path: a file, a link, or a folder with its contents. Succeeds if nothing is there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Syncs a folder to disk, so that the file names in it survive a power loss. Outside Unix this does nothing, because a
/// folder cannot be opened there.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// Finds an obstacle that prevents a folder from being created at `path`: something other than a folder at `path` or at
/// one of its parents. Returns the path and the kind of the obstacle, such as "a file"; `None` if none is found.
pub(crate) fn in_the_way(path: &Path) -> Option<(PathBuf, &'static str)> {
    let path: PathBuf = path.components().collect(); // drops a trailing slash, because `file/` has no metadata
    let part = path.ancestors().find(|part| fs::symlink_metadata(part).is_ok())?;
    let found = match fs::metadata(part) {
        Ok(metadata) if metadata.is_dir() => return None,
        Ok(metadata) => kind(&metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "a symbolic link to nothing",
        Err(_) => return None,
    };
    Some((part.to_path_buf(), found))
}

/// Returns `path`, or `.` (the current folder) if `path` is empty. The parent of a bare file name is such an empty
/// path.
pub(crate) fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Returns the kind of a file system entry, in words for an error message: "a folder", "a file", "a symbolic link", or
/// "a device, a pipe or a socket".
pub(crate) fn kind(metadata: &fs::Metadata) -> &'static str {
    match () {
        () if metadata.is_dir() => "a folder",
        () if metadata.is_file() => "a file",
        () if metadata.is_symlink() => "a symbolic link",
        () => "a device, a pipe or a socket",
    }
}
