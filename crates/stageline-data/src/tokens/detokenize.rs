//! Decodes tokens that arrive one by one, such as generated tokens, to text ([`Continued`]).

use crate::tokens::encode::Encode;
use crate::tokens::error::TokenError;

/// Maximum number of pending tokens, whose text is held back because its last character is incomplete; at this number,
/// the text is returned anyway. A character has at most four bytes, but some encodings also decode the bytes before an
/// incomplete character as U+FFFD, so the limit is larger.
const MOST_WAITING: usize = 16;

/// The number of tokens at the end of a prompt that are decoded together with the first generated tokens, because a
/// token's text may depend on the tokens before it.
const CONTEXT: usize = 8;

/// Decodes tokens that arrive one at a time, such as the tokens that a model generates. A character may consist of
/// several tokens, so its text is returned only with the last of them. The time for a call does not depend on the
/// length of the preceding text.
pub struct Continued<'a> {
    encoding: &'a dyn Encode,
    /// The most recent tokens, which the next call decodes together with its own token. The text of the first
    /// `returned` of them is already known to the caller. The text of the others ends with an incomplete character.
    window: Vec<u32>,
    /// Number of leading tokens in `window` that belong to the prompt, or whose text the caller already has.
    returned: usize,
    /// Prefix of `window`'s decoded text that belongs to the prompt, or that the caller already has.
    shown: String,
}

impl<'a> Continued<'a> {
    /// Creates a decoder for the tokens that follow `prompt`. The text of the prompt itself is not returned.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the encoding cannot decode the prompt.
    pub fn new(encoding: &'a dyn Encode, prompt: &[u32]) -> Result<Self, TokenError> {
        encoding.decode(prompt)?;
        let window = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
        Ok(Self { encoding, returned: window.len(), shown: encoding.decode(&window)?, window })
    }

    /// Adds a generated token, and returns the new text up to its last complete character. The text is empty if this
    /// token completes no character. When 16 tokens are pending, their text is returned, with U+FFFD for an incomplete
    /// character. For a token outside the vocabulary, returns the pending text and U+FFFD.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the encoding cannot decode the tokens.
    pub fn push(&mut self, token: u32) -> Result<String, TokenError> {
        // A model's vocabulary may be larger than its tokenizer's.
        if token as usize >= self.encoding.vocabulary() {
            return Ok(self.rest()? + char::REPLACEMENT_CHARACTER.encode_utf8(&mut [0; 4]));
        }
        self.window.push(token);
        if self.window.len() - self.returned >= MOST_WAITING {
            return self.rest();
        }
        let (new, continues) = self.waiting()?;
        let complete = new.trim_end_matches(char::REPLACEMENT_CHARACTER);
        if complete.len() == new.len() {
            self.end_window()?;
        } else if continues {
            self.shown += complete;
        } else {
            return Ok(String::new());
        }
        Ok(complete.to_owned())
    }

    /// Returns the pending text, whose last character is incomplete; empty if there is none. Bytes that cannot be
    /// decoded become U+FFFD. Call this method after the last token.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the encoding cannot decode the tokens.
    pub fn rest(&mut self) -> Result<String, TokenError> {
        let (text, _) = self.waiting()?;
        self.end_window()?;
        Ok(text)
    }

    /// Decodes the tokens in `window` (the most recent tokens), and returns the text that the caller does not have yet.
    /// The boolean is false if the decoded text does not begin with `shown`, because a later byte has changed how
    /// earlier bytes are decoded.
    fn waiting(&self) -> Result<(String, bool), TokenError> {
        let text = self.encoding.decode(&self.window)?;
        match text.strip_prefix(&self.shown) {
            Some(new) => Ok((new.to_owned(), true)),
            // An invalid byte can change how an encoding decodes the bytes before it.
            None => Ok((self.encoding.decode(&self.window[self.returned..])?, false)),
        }
    }

    /// Marks the text of all tokens in `window` (the most recent tokens) as returned to the caller, and drops older
    /// returned tokens from `window` if newer ones follow, so that `window` stays short.
    fn end_window(&mut self) -> Result<(), TokenError> {
        if self.window.len() > self.returned {
            self.window.drain(..self.returned);
        }
        self.returned = self.window.len();
        self.shown = self.encoding.decode(&self.window)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::tokens::bytes::Bytes;

    fn parts(bytes: &[u8]) -> Vec<String> {
        let mut continued = Continued::new(&Bytes, &[120]).unwrap();
        let mut parts: Vec<_> = bytes.iter().map(|byte| continued.push((*byte).into()).unwrap()).collect();
        parts.push(continued.rest().unwrap());
        parts
    }

    #[test]
    fn a_character_of_several_tokens_comes_as_a_whole() {
        assert_eq!(parts("a€b".as_bytes()), ["a", "", "", "€", "b", ""]);
    }

    #[test]
    fn bytes_that_are_no_text_neither_hide_nor_lose_what_follows() {
        assert_eq!(parts(b"\xffab"), ["", "\u{fffd}a", "b", ""]);
        assert_eq!(parts("a€".as_bytes()[..3].as_ref()), ["a", "", "", "\u{fffd}"]);
        assert_eq!(parts(&[0xff; 40]).concat(), "\u{fffd}".repeat(40));
        // An invalid byte does not hide the character after it.
        assert_eq!(parts(b"\xff\xf0\x9f\x98\x80").concat(), "\u{fffd}😀");
    }

    /// An encoding for tests that counts the tokens that it decodes.
    struct Counting(AtomicUsize);

    impl Encode for Counting {
        fn encode(&self, text: &str) -> Result<Vec<u32>, TokenError> {
            Bytes.encode(text)
        }

        fn decode(&self, tokens: &[u32]) -> Result<String, TokenError> {
            self.0.fetch_add(tokens.len(), Ordering::Relaxed);
            Bytes.decode(tokens)
        }

        fn vocabulary(&self) -> usize {
            Bytes.vocabulary()
        }

        fn fingerprint(&self) -> String {
            Bytes.fingerprint()
        }
    }

    #[test]
    fn a_token_costs_the_same_however_many_came_before() {
        let encoding = Counting(AtomicUsize::new(0));
        let mut continued = Continued::new(&encoding, &[120; 1000]).unwrap();
        let mut cost_of_next = || {
            let before = encoding.0.load(Ordering::Relaxed);
            continued.push(120).unwrap();
            encoding.0.load(Ordering::Relaxed) - before
        };
        let costs: Vec<_> = (0..100).map(|_| cost_of_next()).collect();
        assert!(costs.iter().all(|cost| *cost <= 2 * CONTEXT), "{costs:?}");
    }
}
