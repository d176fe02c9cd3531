//! Opens files without waiting for another process, whatever is at the path: [`open_at_once`].
//!
//! Input: a path. Output: an open file of any kind, or the error of the operating system. The code here must not wait,
//! read, or decide whether the file is a regular one: its callers check that.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens the file at `path` for reading, without waiting: a named pipe is opened even if no process has its other end
/// open. A terminal does not become the controlling terminal of this process.
///
/// The path may lead to anything, so the caller must check that the opened file is a regular one. A check of the path
/// before the opening is not enough, because something else may take the place of the file in between.
///
/// # Errors
/// Returns the error of the operating system. A socket cannot be opened, and outside Unix a folder cannot either.
pub fn open_at_once(path: &Path) -> io::Result<File> {
    without_waiting(OpenOptions::new().read(true)).open(path)
}

/// Sets `options` (on Unix only) so that opening a file never waits, for example for a process at the other end of a
/// named pipe. No terminal becomes the controlling terminal of this process either.
pub(crate) fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}
