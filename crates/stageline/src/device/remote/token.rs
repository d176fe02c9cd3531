//! What a server asks of those who use its devices.

use std::fmt;
use std::io;
use std::path::Path;

/// A secret that both sides know. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The first line of a file.
    ///
    /// # Errors
    /// Where the file cannot be read, or that line is empty.
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

    /// The first line of a file, or, where there is no such file, 256 random bits, which are written there for its owner to read.
    ///
    /// # Errors
    /// Where the file cannot be read or written, or its first line is empty.
    #[cfg(feature = "serve")]
    pub fn read_or_create(path: &Path) -> io::Result<Self> {
        match Self::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(path),
            read => read,
        }
    }

    /// Whether users other than the owner of a file may read it; false where the system has no such permissions.
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

        // A secret key is nothing but random bytes.
        let random = burn::remote::IrohIdentity::random().to_bytes();
        let token = Self(random.iter().map(|byte| format!("{byte:02x}")).collect());
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        writeln!(options.open(path)?, "{}", token.0)?;
        Ok(token)
    }

    /// What is presented; what it is for comes in a second line.
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
    fn a_token_that_others_can_read_is_noticed() {
        let path = std::env::temp_dir().join(format!("stageline-token-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let token = Token::read_or_create(&path).unwrap();
        assert!(!Token::others_can_read(&path), "it is made for its owner");
        for (mode, others) in [(0o640, true), (0o604, true), (0o600, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(Token::others_can_read(&path), others, "{mode:o}");
        }
        assert!(Token::read(&path).unwrap() == token);
        fs::remove_file(&path).unwrap();
        assert!(!Token::others_can_read(&path));
    }
}
