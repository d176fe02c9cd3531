//! Files, read and written with care.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::damage::Damage;

/// The bytes of what must be a regular file, not a link to one.
pub(crate) fn size(path: &Path) -> Result<u64, Damage> {
    let metadata = fs::symlink_metadata(path).map_err(refused)?;
    kind(&metadata, "a file", metadata.is_file())?;
    Ok(metadata.len())
}

/// Whether `path` is a folder, not a link to one.
pub(crate) fn folder(path: &Path) -> Result<(), Damage> {
    let metadata = fs::symlink_metadata(path).map_err(refused)?;
    kind(&metadata, "a folder", metadata.is_dir())
}

/// All of a regular file that has `bytes`, which someone else said.
pub(crate) fn read(path: &Path, bytes: u64) -> Result<Vec<u8>, Damage> {
    let found = size(path)?; // before it is opened, which waits on a pipe
    if found != bytes {
        return Err(Damage::Size { found, expected: bytes });
    }
    let mut contents = Vec::new();
    let length = usize::try_from(bytes).map_err(|_| Damage::Memory { bytes })?;
    contents.try_reserve_exact(length).map_err(|_| Damage::Memory { bytes })?;
    // No more than was made room for, whatever has become of the file since; and one byte, to see whether it grew.
    let mut file = File::open(path).map_err(refused)?;
    file.by_ref().take(bytes).read_to_end(&mut contents).map_err(Damage::Io)?;
    let more = file.read(&mut [0]).map_err(Damage::Io)?;
    let found = contents.len() as u64 + more as u64;
    if found == bytes { Ok(contents) } else { Err(Damage::Size { found, expected: bytes }) }
}

/// Removes a file, a link or a folder with all in it; nothing, if there is nothing.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Makes the names in a folder last. Elsewhere than on Unix, a folder cannot be opened for this.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// The part of a path that is there, but no folder or link to one, and what it is: nothing can be below it.
pub(crate) fn in_the_way(path: &Path) -> Option<(PathBuf, &'static str)> {
    let path: PathBuf = path.components().collect(); // a slash at the end would ask for a folder
    let part = path.ancestors().find(|part| fs::symlink_metadata(part).is_ok())?;
    let found = match fs::metadata(part) {
        Ok(metadata) if metadata.is_dir() => return None,
        Ok(metadata) => what(&metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "a symbolic link to nothing",
        Err(_) => return None,
    };
    Some((part.to_path_buf(), found))
}

/// The path; this folder, if it is empty, as that of a parent is.
pub(crate) fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn kind(metadata: &fs::Metadata, expected: &'static str, is: bool) -> Result<(), Damage> {
    if is { Ok(()) } else { Err(Damage::Kind { found: what(metadata), expected }) }
}

fn what(metadata: &fs::Metadata) -> &'static str {
    match () {
        () if metadata.is_dir() => "a folder",
        () if metadata.is_file() => "a file",
        () if metadata.is_symlink() => "a symbolic link",
        () => "a device, a pipe or a socket",
    }
}

fn refused(error: io::Error) -> Damage {
    match error.kind() {
        io::ErrorKind::NotFound => Damage::Missing,
        _ => Damage::Io(error),
    }
}
