//! Opens what is at a path without waiting for it: [`open_at_once`].

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens what is at `path` for reading. Opening a pipe does not wait for its other end, and opening a terminal does not
/// make it the terminal of this process.
///
/// The caller asks the open file whether it is a regular one, not the path: between a question to the path and the
/// opening, something else may take the place of a file.
pub(crate) fn open_at_once(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(path)
}
