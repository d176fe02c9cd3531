//! Opens files without waiting for what is at their path: [`open_at_once`].

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens what is at `path` for reading. Opening a pipe does not wait for its other end, and opening a terminal does not
/// make it the terminal of this process.
///
/// The caller asks the open file whether it is a regular one, not the path: between a question to the path and the
/// opening, something else may take the place of a file.
///
/// # Errors
/// Returns the error of the operating system. A socket cannot be opened, and outside Unix a folder cannot either.
pub fn open_at_once(path: &Path) -> io::Result<File> {
    without_waiting(OpenOptions::new().read(true)).open(path)
}

/// Changes `options` so that opening does not wait, not even for the other end of a pipe, and makes no terminal that of
/// this process.
pub(crate) fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}
