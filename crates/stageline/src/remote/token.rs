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
