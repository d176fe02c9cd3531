//! Reads files of a checkpoint without trusting their contents and sizes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::damage::Damage;
use crate::disk;
use crate::open::open_at_once;

/// Returns the length in bytes of the regular file at `path`. Returns [`Damage::Missing`] if nothing is there, and
/// [`Damage::Kind`] if something other than a regular file is there, such as a symbolic link.
pub(crate) fn size(path: &Path) -> Result<u64, Damage> {
    let metadata = fs::symlink_metadata(path).map_err(damage)?;
    require(&metadata, "a file", metadata.is_file())?;
    Ok(metadata.len())
}

/// Checks that `path` is a folder. Returns [`Damage::Missing`] if nothing is there, and [`Damage::Kind`] if something
/// other than a folder is there, such as a symbolic link.
pub(crate) fn require_folder(path: &Path) -> Result<(), Damage> {
    let metadata = fs::symlink_metadata(path).map_err(damage)?;
    require(&metadata, "a folder", metadata.is_dir())
}

/// Reads a regular file of exactly `bytes` bytes; any other length is [`Damage::Size`]. `bytes` comes from a manifest
/// that may be malicious, so it is compared with the length on disk before host memory is allocated.
pub(crate) fn read(path: &Path, bytes: u64) -> Result<Vec<u8>, Damage> {
    let found = size(path)?;
    if found != bytes {
        return Err(Damage::Size { found, expected: bytes });
    }
    let mut contents = Vec::new();
    let length = usize::try_from(bytes).map_err(|_| Damage::Memory { bytes })?;
    contents.try_reserve_exact(length).map_err(|_| Damage::Memory { bytes })?;
    // The file may have changed since its length was checked. Only as many bytes are read as were allocated, and one
    // byte more to see whether the file grew.
    let mut file = open(path)?;
    file.by_ref().take(bytes).read_to_end(&mut contents).map_err(Damage::Io)?;
    let more = file.read(&mut [0]).map_err(Damage::Io)?;
    let found = contents.len() as u64 + more as u64;
    if found == bytes { Ok(contents) } else { Err(Damage::Size { found, expected: bytes }) }
}

/// Opens the regular file at `path`. Returns [`Damage::Kind`] if the opened file is a pipe or a device, which may have
/// replaced the file after its size was read.
fn open(path: &Path) -> Result<File, Damage> {
    let file = open_at_once(path).map_err(damage)?;
    let metadata = file.metadata().map_err(Damage::Io)?;
    require(&metadata, "a file", metadata.is_file())?;
    Ok(file)
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

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    /// Tests that a pipe or a device is refused when it is opened, without waiting and without reading from it. Either
    /// may take the place of a file after the file's size was read.
    #[test]
    fn a_pipe_or_a_device_is_refused_when_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), Path::new("/dev/zero")] {
            let refused = open(path).unwrap_err().to_string();
            assert_eq!(refused, "is a device, a pipe or a socket, where a checkpoint has a file");
        }
        fs::write(folder.path().join("file"), "contents").unwrap();
        assert_eq!(read(&folder.path().join("file"), 8).unwrap(), b"contents");
    }
}
