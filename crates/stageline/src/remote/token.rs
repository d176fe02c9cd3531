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
