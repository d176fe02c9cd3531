//! Turns tokens that come one by one into text ([`Continued`]).

use crate::tokens::encode::Encode;
use crate::tokens::error::TokenError;

/// A text whose tokens come one by one. A character may have several tokens, so the text after a token is known only
/// when the character is complete.
pub struct Continued<'a> {
    encoding: &'a dyn Encode,
    tokens: Vec<u32>,
    /// The text that has been returned so far.
    shown: String,
}

impl<'a> Continued<'a> {
    /// Begins a text with the tokens of a prompt, whose text counts as returned.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the encoding does not know a token.
    pub fn new(encoding: &'a dyn Encode, prompt: &[u32]) -> Result<Self, TokenError> {
        Ok(Self { encoding, tokens: prompt.to_vec(), shown: encoding.decode(prompt)? })
    }

    /// Adds a token, and returns the text that it completes: an empty text within a character.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the encoding does not know the token.
    pub fn push(&mut self, token: u32) -> Result<String, TokenError> {
        // A model may have more tokens than its tokenizer.
        if token as usize >= self.encoding.vocabulary() {
            return Ok(char::REPLACEMENT_CHARACTER.to_string());
        }
        self.tokens.push(token);
        let text = self.encoding.decode(&self.tokens)?;
        let new = match text.strip_prefix(&self.shown) {
            Some(new) if !new.ends_with(char::REPLACEMENT_CHARACTER) => new.to_owned(),
            _ => return Ok(String::new()),
        };
        self.shown = text;
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::bytes::Bytes;

    #[test]
    fn a_character_of_several_tokens_comes_as_a_whole() {
        let text = "a€b";
        let mut continued = Continued::new(&Bytes, &[120]).unwrap();
        let parts: Vec<_> = text.bytes().map(|byte| continued.push(byte.into()).unwrap()).collect();
        assert_eq!(parts, ["a", "", "", "€", "b"]);
    }
}
