//! Turns tokens that come one by one into text ([`Continued`]).

use crate::tokens::encode::Encode;
use crate::tokens::error::TokenError;

/// Decodes tokens that arrive one at a time, such as those that a model generates. A character may consist of several
/// tokens, so its text is returned only with the last of them.
pub struct Continued<'a> {
    encoding: &'a dyn Encode,
    tokens: Vec<u32>,
    /// The decoded text that the caller has received so far, including the prompt.
    shown: String,
}

impl<'a> Continued<'a> {
    /// Makes a decoder of the tokens that follow the tokens of a prompt. The text of the prompt is not returned again.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the encoding cannot decode the prompt.
    pub fn new(encoding: &'a dyn Encode, prompt: &[u32]) -> Result<Self, TokenError> {
        Ok(Self { encoding, tokens: prompt.to_vec(), shown: encoding.decode(prompt)? })
    }

    /// Adds a token, and returns the text that it completes; an empty text if the last character is still incomplete. A
    /// token outside the vocabulary gives U+FFFD.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the encoding cannot decode the tokens.
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
