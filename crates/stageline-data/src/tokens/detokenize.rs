//! Turns tokens that arrive one by one, such as generated tokens, into text ([`Continued`]).

use crate::tokens::encode::Encode;
use crate::tokens::error::TokenError;

/// The number of waiting tokens at which their text is returned although its last character is incomplete. Tokens wait
/// until the last character of their text is complete. A character has at most four bytes, but the limit is larger:
/// some encodings also decode the bytes before an incomplete character as U+FFFD.
const MOST_WAITING: usize = 16;

/// The number of tokens at the end of a prompt that are decoded together with the first generated tokens. The text of a
/// token may depend on the tokens before it.
const CONTEXT: usize = 8;

/// Decodes tokens that arrive one at a time, such as the tokens that a model generates. A character may consist of
/// several tokens, so its text is returned only with the last of them. The time that a call takes does not depend on
/// the length of the text before it.
pub struct Continued<'a> {
    encoding: &'a dyn Encode,
    /// The last tokens of the text so far, which the next call decodes together with its own token. The caller already
    /// has the text of the first `returned` of them. The text of the others ends with an incomplete character.
    window: Vec<u32>,
    /// The number of tokens at the beginning of `window` that belong to the prompt, or whose text was already returned
    /// to the caller.
    returned: usize,
    /// The beginning of the decoded text of `window` (the last tokens): the part that belongs to the prompt or was
    /// already returned to the caller.
    shown: String,
}

impl<'a> Continued<'a> {
    /// Creates a decoder for the tokens that follow the tokens `prompt`. The text of the prompt itself is not returned.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the encoding cannot decode the prompt.
    pub fn new(encoding: &'a dyn Encode, prompt: &[u32]) -> Result<Self, TokenError> {
        encoding.decode(prompt)?;
        let window = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
        Ok(Self { encoding, returned: window.len(), shown: encoding.decode(&window)?, window })
    }

    /// Adds a generated token, and returns the new text up to its last complete character. The text is empty if this
    /// token completes no character. When 16 tokens wait, their text is returned, with U+FFFD for an incomplete
    /// character. For a token outside the vocabulary, returns the text that still waits, and U+FFFD.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the encoding cannot decode the tokens.
    pub fn push(&mut self, token: u32) -> Result<String, TokenError> {
        // A model may have more tokens than its tokenizer.
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

    /// Returns the text that still waits for the rest of its last character; empty if there is none. Bytes that cannot
    /// be decoded become U+FFFD. The caller calls this function after the last token.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the encoding cannot decode the tokens.
    pub fn rest(&mut self) -> Result<String, TokenError> {
        let (text, _) = self.waiting()?;
        self.end_window()?;
        Ok(text)
    }

    /// Decodes the tokens in `window` (the last tokens), and returns the part of their text that was not returned
    /// before. The boolean is false if the decoded text no longer begins with the text in `shown`. A later byte has
    /// then changed how the earlier bytes are decoded.
    fn waiting(&self) -> Result<(String, bool), TokenError> {
        let text = self.encoding.decode(&self.window)?;
        match text.strip_prefix(&self.shown) {
            Some(new) => Ok((new.to_owned(), true)),
            // An invalid byte can change how an encoding shows the bytes before it.
            None => Ok((self.encoding.decode(&self.window[self.returned..])?, false)),
        }
    }

    /// Marks the text of all tokens in `window` (the last tokens of the text) as returned to the caller. Before that,
    /// removes the tokens from `window` whose text was marked earlier, if newer tokens follow them.
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
