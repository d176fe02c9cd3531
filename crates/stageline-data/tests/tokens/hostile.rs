//! Tests that opening or reading a damaged or forged token file returns an error that names the fault, and never
//! panics.

use std::fs;
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use stageline_data::{TokenError, TokenFile};

use crate::{Room, tokens};

const HEADER: usize = 112;

/// The JSON lines of the token file that these tests damage.
const LINES: &str = r#"{"prompt": "ab", "completion": "c"}
{"text": "d"}
{"prompt": "e", "completion": "f"}
"#;

/// The size, in bytes, of the document ends (8 for each of 3 documents) and the prompts (16 for each of 2) in the token
/// file of these tests.
const NUMBERS: usize = 3 * 8 + 2 * 16;

/// The bytes of a valid token file with the documents `abc`, `d` and `ef`, of which `ab` and `e` are prompts, and the
/// path of the damaged copies that tests write.
struct Forge {
    bytes: Vec<u8>,
    path: PathBuf,
    _room: Room,
}

impl Forge {
    fn new() -> Self {
        let room = Room::with("a.jsonl", LINES);
        let bytes = fs::read(room.prepare().unwrap().path()).unwrap();
        assert_eq!(bytes.len(), HEADER + 6 * 2 + NUMBERS + 32);
        Self { bytes, path: room.root.path().join("forged.tokens"), _room: room }
    }

    fn open(&self, bytes: &[u8]) -> Result<TokenFile, TokenError> {
        fs::write(&self.path, bytes).unwrap();
        TokenFile::open(&self.path)
    }

    /// Writes a damaged copy of the token file and opens it, which must fail. The closure `damage` changes the bytes of
    /// the copy. The checksum of the copy is then corrected, so that it does not reveal the damage. Returns the fault
    /// that the error reports.
    fn fault(&self, damage: impl Fn(&mut Vec<u8>)) -> String {
        let mut bytes = self.bytes.clone();
        damage(&mut bytes);
        let (before, checksum) = (bytes.len() - 32 - NUMBERS, bytes.len() - 32);
        let sum = Sha256::new().chain_update(&bytes[..HEADER]).chain_update(&bytes[before..checksum]).finalize();
        bytes[checksum..].copy_from_slice(&sum);
        match self.open(&bytes).unwrap_err() {
            TokenError::Damaged { path, damage } if path == self.path => damage,
            other => panic!("{other:?}"),
        }
    }

    /// Writes a damaged copy of the token file and opens it, which must fail. In the copy, `number` replaces the 8
    /// bytes at the offset `at`. Returns the fault that the error reports.
    fn with_number(&self, at: usize, number: u64) -> String {
        self.fault(|bytes| bytes[at..at + 8].copy_from_slice(&number.to_le_bytes()))
    }
}

#[test]
fn a_truncated_or_longer_file_is_refused() {
    let forge = Forge::new();
    for length in 0..forge.bytes.len() {
        assert!(matches!(forge.open(&forge.bytes[..length]), Err(TokenError::Damaged { .. })), "{length} bytes");
    }
    let longer = [&forge.bytes[..], b"x"].concat();
    let message = forge.open(&longer).unwrap_err().to_string();
    let fault = "it has 213 bytes, which is not the length of 6 tokens in 3 documents with 2 prompts";
    let path = forge.path.display();
    assert_eq!(message, format!("{path} is no usable token file: {fault}; delete it, and prepare the tokens again"));
    assert!(forge.open(&forge.bytes).is_ok());
}

#[test]
fn another_magic_version_or_width_is_refused() {
    let forge = Forge::new();
    assert_eq!(forge.fault(|bytes| bytes[0] = b'S'), "it does not begin as a token file");
    assert_eq!(forge.fault(|bytes| bytes[8] = 1), "its format has version 1, and this release reads version 2");
    assert_eq!(forge.fault(|bytes| bytes[12] = 4), "its tokens have 4 bytes, for a vocabulary of 256");
    assert_eq!(forge.with_number(16, 0), "its vocabulary has 0 tokens");
    assert_eq!(forge.with_number(16, (1 << 32) + 1), "its vocabulary has 4294967297 tokens");
}

#[test]
fn counts_whose_length_overflows_are_refused() {
    let forge = Forge::new();
    for tokens in [7, u64::MAX, u64::MAX / 2, u64::MAX / 2 + 1, (1 << 63) + 6, 1 << 62] {
        let fault = forge.with_number(24, tokens);
        assert_eq!(
            fault,
            format!("it has 212 bytes, which is not the length of {tokens} tokens in 3 documents with 2 prompts")
        );
    }
    assert_eq!(forge.with_number(32, u64::MAX), format!("it has {} documents and 6 tokens", u64::MAX));
    // With 2^61 + 3 documents, the length of the document ends, 8 bytes each, would wrap around to that of 3 documents.
    let wrapped = forge.fault(|bytes| {
        bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        bytes[32..40].copy_from_slice(&((1_u64 << 61) + 3).to_le_bytes());
    });
    assert!(wrapped.starts_with("it has 212 bytes"), "{wrapped}");
}

#[test]
fn ends_must_ascend_to_the_number_of_tokens() {
    let forge = Forge::new();
    let ends = HEADER + 6 * 2;
    assert_eq!(forge.with_number(ends, 0), "its document 0 ends at 0, and begins at 0");
    assert_eq!(forge.with_number(ends + 8, 3), "its document 1 ends at 3, and begins at 3");
    assert_eq!(forge.with_number(ends, u64::MAX), format!("its document 1 ends at 4, and begins at {}", u64::MAX));
    assert_eq!(forge.with_number(ends + 16, 7), "its last document ends at 7, and it has 6 tokens");
    assert_eq!(forge.with_number(ends + 16, 5), "its last document ends at 5, and it has 6 tokens");
}

#[test]
fn prompts_must_ascend_within_the_tokens() {
    let forge = Forge::new();
    let prompts = HEADER + 6 * 2 + 3 * 8;
    assert_eq!(forge.with_number(40, 7), "it has 7 prompts and 6 tokens");
    assert_eq!(forge.with_number(prompts, 2), "its prompt 0 begins at 2 and ends at 2, of 6 tokens");
    assert_eq!(forge.with_number(prompts + 16, 2), "its prompt 1 begins at 2 and ends at 5, of 6 tokens");
    assert_eq!(forge.with_number(prompts + 24, 7), "its prompt 1 begins at 4 and ends at 7, of 6 tokens");
}

/// Flips each bit of a token file in turn, and opens the file. Opening must fail unless the bit belongs to a token. In
/// that case, reading must fail or return another token of the vocabulary.
#[test]
fn every_wrong_bit_outside_the_tokens_is_refused() {
    let forge = Forge::new();
    for at in 0..forge.bytes.len() {
        for bit in 0..8 {
            let mut bytes = forge.bytes.clone();
            bytes[at] ^= 1 << bit;
            let opened = forge.open(&bytes);
            if !(HEADER..HEADER + 12).contains(&at) {
                assert!(matches!(opened, Err(TokenError::Damaged { .. })), "bit {bit} of byte {at}");
                continue;
            }
            let file = opened.unwrap();
            let read = file.read(0, &mut [0; 6]);
            match (at - HEADER) % 2 {
                0 => assert!(tokens(&file).iter().all(|&token| token < 256)),
                _ => assert!(matches!(read, Err(TokenError::Damaged { .. }))),
            }
        }
    }
}

#[test]
#[should_panic(expected = "2 tokens at position 5 are not in a file of 6 tokens")]
fn a_read_past_the_end_panics() {
    let forge = Forge::new();
    let _ = forge.open(&forge.bytes).unwrap().read(5, &mut [0; 2]);
}

#[test]
#[should_panic(expected = "are not in a file of 6 tokens")]
fn a_position_that_overflows_panics() {
    let forge = Forge::new();
    let _ = forge.open(&forge.bytes).unwrap().read(u64::MAX, &mut [0; 2]);
}

#[test]
#[should_panic(expected = "position 6 is not in a file of 6 tokens")]
fn a_target_past_the_end_panics() {
    let forge = Forge::new();
    forge.open(&forge.bytes).unwrap().is_target(6);
}

#[test]
#[should_panic(expected = "document 3 is not in a file of 3 documents")]
fn the_range_of_a_document_past_the_end_panics() {
    let forge = Forge::new();
    forge.open(&forge.bytes).unwrap().document(3);
}

#[test]
#[should_panic(expected = "position 6 is not in a file of 6 tokens")]
fn a_document_past_the_end_panics() {
    let forge = Forge::new();
    forge.open(&forge.bytes).unwrap().document_start(6);
}
