//! Opens files without waiting for another process, whatever is at the path: [`open_at_once`].
//!
//! Input: a path. Output: an open file of any kind, or the operating system's error. The code here must not wait, read,
//! or decide whether the file is a regular one: its callers check that.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens the file at `path` for reading, without waiting: opening a named pipe returns immediately, even if no process
/// has its other end open. A terminal does not become the controlling terminal of this process.
///
/// The path may lead to anything, so the caller must check that the opened file is a regular one. Checking the path
/// before opening it is not enough, because something else may take the file's place in between.
///
/// # Errors
/// Returns the operating system's error. A socket cannot be opened, and outside Unix a folder cannot be opened either.
pub fn open_at_once(path: &Path) -> io::Result<File> {
    without_waiting(OpenOptions::new().read(true)).open(path)
}

/// Sets `options` (on Unix only) so that opening a file never waits, for example for a process at the other end of a
/// named pipe. An opened terminal does not become the controlling terminal of this process either.
pub(crate) fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}
