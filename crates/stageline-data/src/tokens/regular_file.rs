//! Opens only regular files ([`open_file`]). A pipe could block until another process writes to it, and a device may be
//! endless.

use std::fs::{self, File};
use std::path::Path;

use stageline_checkpoint::open_at_once;

use crate::tokens::error::TokenError;

/// Opens the regular file at `path` for reading, for example a tokenizer or a JSON file with rows of token ids. A
/// symbolic link at `path` is followed. The file may have at most `most` bytes.
///
/// # Errors
/// - [`TokenError::PathNotFound`] if nothing is at the path.
/// - [`TokenError::DanglingLink`] if the path is a symbolic link to something that does not exist.
/// - [`TokenError::NotAFile`] if a folder, a device, a pipe or a socket is there.
/// - [`TokenError::TooLong`] if the file has more than `most` bytes.
/// - [`TokenError::Io`] if the operating system cannot open the file.
pub fn open_file(path: &Path, most: u64) -> Result<File, TokenError> {
    let not_a_file = || TokenError::NotAFile { path: path.to_path_buf() };
    let file = open_at_once(path).map_err(|error| match fs::metadata(path) {
        // A socket cannot be opened, and outside Unix a folder cannot either.
        Ok(metadata) if !metadata.is_file() => not_a_file(),
        _ => TokenError::io(path)(error).or_dangling_link(),
    })?;
    let metadata = file.metadata().map_err(TokenError::io(path))?;
    if !metadata.is_file() {
        return Err(not_a_file());
    }
    if metadata.len() > most {
        return Err(TokenError::TooLong { path: path.to_path_buf(), found: metadata.len(), most });
    }
    Ok(file)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_regular_files_up_to_a_length_are_opened() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("file"), "contents").unwrap();
        symlink("file", path("link")).unwrap();
        symlink("nowhere", path("nothing")).unwrap();
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let _socket = UnixListener::bind(path("socket")).unwrap();
        for name in ["file", "link"] {
            assert_eq!(open_file(&path(name), 8).unwrap().metadata().unwrap().len(), 8);
            let message = open_file(&path(name), 7).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("has 8 bytes, but may have at most 7"), "{message}");
        }
        for (name, part) in [
            ("absent\n", r"absent\n does not exist"),
            ("nothing", "nothing is a link to a file that does not exist"),
            ("pipe", "pipe is no regular file"),
            ("socket", "socket is no regular file"),
            ("", "is no regular file"),
            ("/dev/zero", "/dev/zero is no regular file"),
        ] {
            let message = open_file(&path(name), 8).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
