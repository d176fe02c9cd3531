//! SHA-256 in hexadecimal digits, and the seal at the end of a manifest, which detects damage.
//!
//! The seal is the SHA-256 of all text before it, as the last field of the manifest.

use sha2::{Digest, Sha256};

use crate::damage::Damage;

/// The number of hexadecimal digits of a SHA-256.
pub(crate) const HEX: usize = 64;

/// The JSON text before the seal's 64 digits (a SHA-256) in a manifest file.
const BEFORE: &str = ",\n  \"sha256\": \"";
/// The JSON text after the seal's 64 digits (a SHA-256), which ends a manifest file.
const AFTER: &str = "\"\n}\n";

/// Returns the SHA-256 of `bytes` in lowercase hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    to_hex(Sha256::new_with_prefix(bytes))
}

/// Finishes the hash computation `hasher`, and returns its SHA-256 in lowercase hexadecimal digits.
pub(crate) fn to_hex(hasher: Sha256) -> String {
    digits(&hasher.finalize())
}

/// Returns bytes as lowercase hexadecimal digits.
pub(crate) fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Appends the seal (the SHA-256 of all text before it) to a manifest's JSON as its last field, to detect damage.
/// `object` is the JSON without the seal and must end with a line break and `}`.
pub(crate) fn seal(object: &str) -> String {
    let body = object.strip_suffix("\n}").unwrap_or(object);
    format!("{body}{BEFORE}{}{AFTER}", sha256(body.as_bytes()))
}

/// Checks the seal (the SHA-256 at the end) of a manifest's text, and returns the text without the seal. Returns an
/// error if the seal is missing or wrong.
pub(crate) fn open(text: &str) -> Result<String, Damage> {
    let cut = (|| {
        let rest = text.strip_suffix(AFTER)?;
        let (rest, recorded) = rest.split_at_checked(rest.len().checked_sub(HEX)?)?;
        Some((rest.strip_suffix(BEFORE)?, recorded))
    })();
    let (body, recorded) = cut.ok_or(Damage::NoSeal)?;
    let found = sha256(body.as_bytes());
    if found != recorded {
        return Err(Damage::Hash { found, expected: recorded.to_owned() });
    }
    Ok(format!("{body}\n}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_equals_the_published_vector() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(sha256(b"").len(), HEX);
    }

    #[test]
    fn a_seal_is_the_last_field_and_opens() {
        let object = "{\n  \"a\": 1\n}";
        let sealed = seal(object);
        assert!(sealed.starts_with("{\n  \"a\": 1,\n  \"sha256\": \""), "{sealed}");
        assert_eq!(open(&sealed).unwrap(), object);
        let value: serde_json::Value = serde_json::from_str(&sealed).unwrap();
        assert_eq!(value["sha256"], sha256(b"{\n  \"a\": 1"));
    }

    #[test]
    fn any_other_text_does_not_open() {
        let sealed = seal("{\n  \"a\": 1\n}");
        for length in 0..sealed.len() {
            assert!(open(&sealed[..length]).is_err(), "{length}");
        }
        for text in
            [sealed.clone() + "\n", sealed.replace('1', "2"), sealed.replace("  \"sha", " \"sha"), "é".repeat(60)]
        {
            assert!(open(&text).is_err(), "{text}");
        }
    }
}
