//! The byte-level encoding, which needs no tokenizer: [`Bytes`].

use crate::tokens::encode::{Encode, check_known};
use crate::tokens::error::TokenError;

/// The byte-level encoding: each byte of the text is a token with an id from 0 to 255. The vocabulary has 256 tokens.
///
/// Any bytes can be encoded. Decoding replaces each invalid UTF-8 sequence with U+FFFD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes;

impl Encode for Bytes {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenError> {
        self.encode_bytes(text.as_bytes())
    }

    fn encode_bytes(&self, text: &[u8]) -> Result<Vec<u32>, TokenError> {
        Ok(text.iter().map(|&byte| u32::from(byte)).collect())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenError> {
        check_known(tokens, self.vocabulary())?;
        let bytes: Vec<u8> = tokens.iter().map(|&token| token as u8).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn vocabulary(&self) -> usize {
        256
    }

    fn fingerprint(&self) -> String {
        "bytes".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_a_round_trip() {
        let text = "a é 字\n";
        assert_eq!(Bytes.decode(&Bytes.encode(text).unwrap()).unwrap(), text);
        assert_eq!(Bytes.encode("aé").unwrap(), [0x61, 0xc3, 0xa9]);
    }

    #[test]
    fn any_bytes_are_encoded_and_decoded_with_replacements() {
        let every: Vec<u8> = (0..=255).collect();
        assert_eq!(Bytes.encode_bytes(&every).unwrap(), (0..256).collect::<Vec<u32>>());
        assert_eq!(Bytes.decode(&[0x61, 0xc3]).unwrap(), "a\u{fffd}");
    }

    #[test]
    fn a_token_above_255_is_refused() {
        let error = Bytes.decode(&[1, 256]).unwrap_err();
        assert!(matches!(error, TokenError::UnknownToken { token: 256, vocabulary: 256 }));
    }
}
