//! The paths of output files: whether they can be written, and the error if they cannot.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

/// Returns the error message for an output file that cannot be written.
pub fn unwritable(path: &Path) -> String {
    format!("cannot write {}; give a path in an existing folder that is writable, on a disk with room", path.display())
}

/// Checks, before training, that a file to be written at the end can be opened for writing. An existing file is
/// unchanged, and a new file is removed again. Pipes and devices are not checked.
pub fn try_out(path: &Path) -> io::Result<()> {
    // Opening a pipe would wait for its reader, so pipes and devices are not opened before they are written.
    if is_pipe_or_device(path) {
        return Ok(());
    }
    let is_new = fs::symlink_metadata(path).is_err();
    OpenOptions::new().append(true).create(true).open(path)?;
    if is_new { fs::remove_file(path) } else { Ok(()) }
}

/// Whether something other than a file or a folder is at the path, such as a pipe or `/dev/null`.
pub fn is_pipe_or_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}
