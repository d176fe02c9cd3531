//! Reads files of a checkpoint, whose contents and sizes are not trusted.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::damage::Damage;
use crate::disk;

/// Returns the length in bytes of the regular file at `path`; an error if `path` is anything else, such as a symbolic
/// link to a file.
pub(crate) fn size(path: &Path) -> Result<u64, Damage> {
    let metadata = fs::symlink_metadata(path).map_err(damage)?;
    require(&metadata, "a file", metadata.is_file())?;
    Ok(metadata.len())
}

/// Checks that `path` is a folder; an error if it is anything else, such as a symbolic link to a folder.
pub(crate) fn require_folder(path: &Path) -> Result<(), Damage> {
    let metadata = fs::symlink_metadata(path).map_err(damage)?;
    require(&metadata, "a folder", metadata.is_dir())
}

/// Returns the contents of a regular file, which must have exactly `bytes` bytes. This length comes from a manifest
/// that may be malicious, so it is compared with the length on disk before memory is allocated.
pub(crate) fn read(path: &Path, bytes: u64) -> Result<Vec<u8>, Damage> {
    let found = size(path)?; // before the file is opened, because opening a pipe blocks
    if found != bytes {
        return Err(Damage::Size { found, expected: bytes });
    }
    let mut contents = Vec::new();
    let length = usize::try_from(bytes).map_err(|_| Damage::Memory { bytes })?;
    contents.try_reserve_exact(length).map_err(|_| Damage::Memory { bytes })?;
    // The file may have changed since. Reads no more than was allocated, and one byte more to see whether it grew.
    let mut file = File::open(path).map_err(damage)?;
    file.by_ref().take(bytes).read_to_end(&mut contents).map_err(Damage::Io)?;
    let more = file.read(&mut [0]).map_err(Damage::Io)?;
    let found = contents.len() as u64 + more as u64;
    if found == bytes { Ok(contents) } else { Err(Damage::Size { found, expected: bytes }) }
}

fn require(metadata: &fs::Metadata, expected: &'static str, is: bool) -> Result<(), Damage> {
    if is { Ok(()) } else { Err(Damage::Kind { found: disk::kind(metadata), expected }) }
}

fn damage(error: io::Error) -> Damage {
    match error.kind() {
        io::ErrorKind::NotFound => Damage::Missing,
        _ => Damage::Io(error),
    }
}
