//! Opens untrusted files, and replaces files so that readers see either the old file or the complete new one.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde_json::{Map, Value};
use stageline_checkpoint::open_at_once;

use crate::error::FolderError;
use crate::refusal::Refusal;

/// Maximum length of a JSON file in bytes; a longer file is an error. The limit keeps a wrong file from filling the
/// host memory.
const MOST_JSON: u64 = 64 << 20;

/// Opens the regular file at `path`, and follows symbolic links. If the file is missing, the error quotes `reason`,
/// which says why the folder must have it.
///
/// Links are followed, because the cache of the Hugging Face hub has links in place of files. The file type is checked
/// on the opened file, and not before, because another file could take its place in between.
pub(crate) fn open(path: &Path, reason: &'static str) -> Result<File, FolderError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => FolderError::MissingFile { path: path.to_path_buf(), reason },
        _ => FolderError::read(path)(error),
    };
    let not_a_file = || FolderError::NotAFile { path: path.to_path_buf() };
    let file = open_at_once(path).map_err(|error| match fs::metadata(path) {
        // A socket cannot be opened, and outside Unix a folder cannot either.
        Ok(metadata) if !metadata.is_file() => not_a_file(),
        _ => failed(error),
    })?;
    if file.metadata().map_err(FolderError::read(path))?.is_file() { Ok(file) } else { Err(not_a_file()) }
}

/// Reads the regular file at `path` and returns its bytes. A symbolic link at `path` is followed. A file of more than
/// `most` bytes is an error.
///
/// A pipe is an error, because reading it would wait for another process. A device is an error, because reading it
/// might never end.
///
/// # Errors
/// - [`FolderError::FileNotFound`] if nothing is at the path.
/// - [`FolderError::DanglingLink`] if the path is a symbolic link to something that does not exist.
/// - [`FolderError::NotAFile`] if a folder, a device, a pipe or a socket is there.
/// - [`FolderError::TooLong`] if the file has more than `most` bytes.
/// - [`FolderError::Read`] if the operating system cannot read the file.
pub fn read_file(path: impl AsRef<Path>, most: u64) -> Result<Vec<u8>, FolderError> {
    let path = path.as_ref();
    let file = open(path, "the caller names it").map_err(|error| match error {
        FolderError::MissingFile { path, .. } if fs::symlink_metadata(&path).is_ok() => {
            FolderError::DanglingLink { path }
        }
        FolderError::MissingFile { path, .. } => FolderError::FileNotFound { path },
        other => other,
    })?;
    read_at_most(file, path, most)
}

/// Reads the rest of an open file into host memory. More than `most` bytes are an error, and at most one byte more is
/// read. `path` names the file in errors.
fn read_at_most(file: File, path: &Path, most: u64) -> Result<Vec<u8>, FolderError> {
    let mut bytes = Vec::new();
    (&file).take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(FolderError::read(path))?;
    if bytes.len() as u64 <= most {
        return Ok(bytes);
    }
    let found = file.metadata().map_or(bytes.len() as u64, |metadata| metadata.len());
    Err(FolderError::TooLong { path: path.to_path_buf(), found, most })
}

/// Reads a JSON file that contains an object. More than 64 MiB are an error. If the file is missing, the error quotes
/// `reason`, which says why the folder must have it.
pub(crate) fn read_json(path: &Path, reason: &'static str) -> Result<Map<String, Value>, FolderError> {
    let bytes = read_at_most(open(path, reason)?, path, MOST_JSON)?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(FolderError::malformed(path, "it is JSON, but not an object")),
        Err(error) => Err(FolderError::malformed(path, format_args!("it is not valid JSON: {error}"))),
    }
}

/// Whether `folder` has an entry with the name `name`, even a broken link. The result is also true if the operating
/// system cannot tell, so that a later attempt to open the file reports the error.
pub(crate) fn has(folder: &Path, name: &str) -> bool {
    !matches!(fs::symlink_metadata(folder.join(name)), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Syncs a folder to disk, so that new and renamed files in it keep their names after a crash. Does nothing on systems
/// other than Unix, because a folder cannot be opened there.
pub(crate) fn sync_folder(path: &Path) -> Result<(), FolderError> {
    let synced = if cfg!(unix) { File::open(path).and_then(|folder| folder.sync_all()) } else { Ok(()) };
    synced.map_err(FolderError::write("sync", path))
}

/// Creates the folder `folder` and its missing parents, and syncs their names to disk. Does nothing if the folder
/// exists.
pub(crate) fn create_folder(folder: &Path) -> Result<(), FolderError> {
    let missing: Vec<_> =
        folder.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).collect();
    fs::create_dir_all(folder).map_err(FolderError::write("create the folder", folder))?;
    missing.into_iter().filter_map(Path::parent).map(or_here).try_for_each(sync_folder)
}

/// Returns `folder`, or `.` (the current folder) if `folder` is an empty path. The parent of a plain file name is an
/// empty path, which the operating system does not accept.
pub(crate) fn or_here(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// Returns the path of the file that writing to `path` replaces: the target of a symbolic link at `path`, or else
/// `path` itself.
///
/// # Errors
/// - [`FolderError::Refused`] if something other than a regular file is at the path, or if the path names no file.
/// - [`FolderError::DanglingLink`] if the path is a symbolic link to something that does not exist.
/// - [`FolderError::Read`] if the operating system cannot resolve the path.
pub(crate) fn replaced(path: &Path) -> Result<PathBuf, FolderError> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(FolderError::refused(path, Refusal::NotAFile)),
        Ok(_) => fs::canonicalize(path).map_err(FolderError::read(path)),
        Err(_) if path.file_name().is_none() => Err(FolderError::refused(path, Refusal::NotAFile)),
        Err(_) if fs::symlink_metadata(path).is_ok() => Err(FolderError::DanglingLink { path: path.to_path_buf() }),
        Err(_) => Ok(path.to_path_buf()),
    }
}

/// A new file of a model folder that has a temporary name until it is published, which means renamed to its final name.
/// If it is never published, it is removed when this value is dropped.
pub(crate) struct NewFile {
    temporary: PathBuf,
    path: PathBuf,
}

impl NewFile {
    /// Creates an empty temporary file in the folder of `path`, which [`publish`](Self::publish) renames to `path`. The
    /// caller writes and syncs the returned open file.
    pub(crate) fn create(path: &Path) -> Result<(Self, File), FolderError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let (temporary, file) = create_temporary(folder)?;
        Ok((Self { temporary, path: path.to_path_buf() }, file))
    }

    /// Creates a temporary file in `folder` that is to become the file `name`. The closure `fill` writes its contents,
    /// and then the file is synced to disk. If `fill` fails, the temporary file is removed and the error is returned.
    pub(crate) fn write(
        folder: &Path,
        name: &str,
        fill: impl FnOnce(&mut File) -> Result<(), FolderError>,
    ) -> Result<Self, FolderError> {
        let (new, mut file) = Self::create(&folder.join(name))?;
        fill(&mut file)?;
        file.sync_all().map_err(FolderError::write("sync", &new.temporary))?;
        Ok(new)
    }

    /// Renames the file from its temporary name to its final name, and replaces an existing file with that name.
    pub(crate) fn publish(self) -> Result<(), FolderError> {
        fs::rename(&self.temporary, &self.path).map_err(FolderError::write("replace", &self.path))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // The error of the removal is ignored: after a successful rename, the temporary name does not exist.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Creates a file with a new temporary name in `folder`. Returns its path and the open file.
fn create_temporary(folder: &Path) -> Result<(PathBuf, File), FolderError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".stageline-hub-{}-{count}.tmp", process::id()));
        match File::create_new(&path) {
            Ok(file) => return Ok((path, file)),
            // The file is from a killed process with the same id, or from a process on another host, so the next name
            // is tried.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(FolderError::write("create", &path)(error)),
        }
    }
}

/// Writes a value as JSON to a temporary file in `folder`, which [`NewFile::publish`] renames to `name`.
pub(crate) fn write_json(folder: &Path, name: &str, value: &impl Serialize) -> Result<NewFile, FolderError> {
    let path = folder.join(name);
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| FolderError::refused(&path, Refusal::Json { reason: error.to_string() }))? + "\n";
    NewFile::write(folder, name, |file| file.write_all(text.as_bytes()).map_err(FolderError::write("write", &path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that an export works in a folder in which a killed process left files. In a container, the next process
    /// often has the same process id.
    #[test]
    fn a_temporary_file_that_a_killed_process_left_is_not_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        // Parallel tests in this process may use up some of these counts, but not all 100.
        let left: Vec<_> = (0..100).map(|count| format!(".stageline-hub-{}-{count}.tmp", process::id())).collect();
        left.iter().for_each(|name| fs::write(folder.path().join(name), "left").unwrap());
        write_json(folder.path(), "config.json", &Map::new()).unwrap().publish().unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("config.json")).unwrap(), "{}\n");
        // Another process may still write these files, so they must stay.
        assert!(left.iter().all(|name| fs::read(folder.path().join(name)).unwrap() == b"left"));
    }
}
