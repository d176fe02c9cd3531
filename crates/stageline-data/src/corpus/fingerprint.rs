//! Computes the fingerprint of a corpus, a hash that shows a resumed run whether it trains on the same text.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::corpus::split::Split;
use crate::error::CorpusError;
use crate::hex::hex;
use crate::walk::relative_name;

/// Returns the fingerprint of a corpus, a SHA-256 in hexadecimal digits. It covers the names, byte ranges and bytes of
/// the training and validation files. Reads all of these bytes.
///
/// The hash covers the training text, then the validation text. For each text, it covers the number of file ranges, and
/// then for each range, in this order:
///
/// - the length of the file's path relative to `root`, and that path;
/// - the range's start and end offsets in the file;
/// - the range's bytes.
///
/// Numbers are 64 bits, little-endian. Checkpoints store the fingerprint, so it must stay the same in every release.
///
/// # Errors
/// Returns [`CorpusError::Changed`] if a file has changed since it was sampled, or [`CorpusError::Io`] if it cannot be
/// read.
pub(crate) fn fingerprint(root: &Path, split: &Split) -> Result<String, CorpusError> {
    let mut hash = Sha256::new();
    for side in [&split.train, &split.validation] {
        hash.update((side.len() as u64).to_le_bytes());
        for range in side {
            let name = relative_name(root, &range.path);
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(&name);
            hash.update(range.bytes.start.to_le_bytes());
            hash.update(range.bytes.end.to_le_bytes());
            range.read_chunks(|chunk| hash.update(chunk))?;
        }
    }
    Ok(hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::Range;

    use super::*;
    use crate::file_change::Stamp;
    use crate::file_range::FileRange;

    /// The part of a file that a test selects: the file's name, and the range of its bytes.
    type Part<'a> = (&'a str, Range<u64>);

    /// Returns the fingerprint of a corpus with the given parts of files. The bytes of each file count up from `first`.
    fn fingerprint_of(first: u8, train: &[Part], validation: &[Part]) -> String {
        let root = tempfile::tempdir().unwrap();
        let range = |(name, bytes): &Part| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let contents: Vec<u8> = (0..bytes.end).map(|i| first.wrapping_add(i as u8)).collect();
            fs::write(&path, contents).unwrap();
            let stamp = Stamp::new(&fs::metadata(&path).unwrap());
            FileRange { path, bytes: bytes.clone(), stamp }
        };
        let ranges = |parts: &[Part]| parts.iter().map(range).collect();
        fingerprint(root.path(), &Split { train: ranges(train), validation: ranges(validation) }).unwrap()
    }

    #[test]
    fn the_fingerprint_is_the_documented_sha_256() {
        // The expected hash was computed with Python's hashlib and struct.
        let expected = "725f4f3b4fca5c35dded3b6ca1789d54374dca633facd8e2ef2300e38b0b02e4";
        assert_eq!(fingerprint_of(0, &[("a/b.txt", 0..10), ("é", 0..300)], &[("c", 7..9)]), expected);
    }

    #[test]
    fn different_texts_have_different_fingerprints() {
        let texts = [
            fingerprint_of(0, &[("a", 0..10), ("b", 0..10)], &[]),
            fingerprint_of(0, &[("b", 0..10), ("a", 0..10)], &[]),
            fingerprint_of(0, &[("a", 0..10)], &[("b", 0..10)]),
            fingerprint_of(0, &[("a", 0..10)], &[]),
            fingerprint_of(1, &[("a", 0..10)], &[]),
            fingerprint_of(0, &[("a", 0..9)], &[]),
            fingerprint_of(0, &[("a", 1..10)], &[]),
            fingerprint_of(0, &[], &[("a", 0..10)]),
            fingerprint_of(0, &[("ab", 0..10)], &[]),
        ];
        let different: std::collections::BTreeSet<_> = texts.iter().collect();
        assert_eq!(different.len(), texts.len(), "{texts:?}");
    }
}
