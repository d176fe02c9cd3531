//! The token ([`Token`]): the secret that a program must present to use the devices of a server.

use std::fmt;
use std::io;
use std::path::Path;

/// The secret string that a server requires of programs that use its devices. The server and the programs are given the
/// same string. The `Debug` output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Reads a server's token from the first line of a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or if its first line is empty.
    pub fn read(path: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let line = text.lines().next().unwrap_or_default().trim();
        if line.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its first line is empty; write a long random text there",
            ));
        }
        Ok(Self(line.to_owned()))
    }

    /// Reads a token from the first line of a file. If there is no such file, creates the file with 256 random bits in
    /// hexadecimal; on Unix, only its owner can read it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written, or if its first line is empty.
    #[cfg(feature = "serve")]
    pub fn read_or_create(path: &Path) -> io::Result<Self> {
        match Self::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(path),
            read => read,
        }
    }

    /// Whether users other than its owner can read a token file, so that the token is not secret. Always false on
    /// systems without Unix permissions.
    #[cfg(feature = "serve")]
    pub fn others_can_read(path: &Path) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o044 != 0)
        }
        #[cfg(not(unix))]
        {
            let _ = path;
            false
        }
    }

    #[cfg(feature = "serve")]
    fn create(path: &Path) -> io::Result<Self> {
        use std::io::Write;

        // burn's iroh identity is a secret key that consists of exactly 32 random bytes, so it can serve as a source of
        // randomness.
        let random = burn::remote::IrohIdentity::random().to_bytes();
        let token = Self(random.iter().map(|byte| format!("{byte:02x}")).collect());
        // Several servers may create the file at the same time. Each writes a temporary file and then gives it the
        // name. The first file with the name stays.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        writeln!(file, "{}", token.0)?;
        match file.persist_noclobber(path) {
            Ok(_) => Ok(token),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Self::read(path),
            Err(error) => Err(error.error),
        }
    }

    /// Returns a client's credential for opening a session (a queue of requests to one device). The first line is the
    /// token, or empty without a token. The second line is the session's purpose `purpose`; an empty purpose is left
    /// out.
    #[cfg(feature = "remote")]
    pub(super) fn for_purpose(token: Option<&Self>, purpose: &str) -> String {
        let token = token.map_or("", |token| &token.0);
        if purpose.is_empty() { token.to_owned() } else { format!("{token}\n{purpose}") }
    }

    #[cfg(feature = "serve")]
    pub(super) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
#[cfg(all(unix, feature = "serve"))]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn servers_that_start_together_share_a_new_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read = || Token::read_or_create(&path).unwrap();
        let tokens: Vec<_> = std::thread::scope(|scope| {
            let servers: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
            servers.into_iter().map(|server| server.join().unwrap()).collect()
        });
        let kept = Token::read(&path).unwrap();
        assert!(tokens.iter().all(|token| *token == kept));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "temporary files stay in the folder");
    }

    #[test]
    fn a_token_file_that_others_can_read_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let token = Token::read_or_create(&path).unwrap();
        assert!(!Token::others_can_read(&path), "a new file is readable by its owner only");
        for (mode, others) in [(0o640, true), (0o604, true), (0o600, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(Token::others_can_read(&path), others, "{mode:o}");
        }
        assert!(Token::read(&path).unwrap() == token);
        fs::remove_file(&path).unwrap();
        assert!(!Token::others_can_read(&path));
    }
}
