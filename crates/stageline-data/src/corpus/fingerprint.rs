//! The fingerprint of a corpus, a hash by which a resumed run recognises its text.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::corpus::split::Split;
use crate::file_range::FileRange;
use crate::walk::relative_name;

/// Returns the fingerprint of a corpus, a SHA-256 in hexadecimal digits. It covers the names and byte ranges of the
/// files for training and for validation, but not the bytes themselves.
///
/// The hash covers the training text and then the validation text. For each text it takes the number of file ranges;
/// then, for each range, the length of the file's path relative to `root`, that path, and the offsets at which the
/// range starts and ends. Numbers are 64 bits, little-endian. Checkpoints keep the fingerprint, so it must stay the
/// same in every release.
pub(crate) fn fingerprint(root: &Path, split: &Split) -> String {
    let mut hash = Sha256::new();
    for side in [&split.train, &split.validation] {
        hash.update((side.len() as u64).to_le_bytes());
        for FileRange { path, bytes, .. } in side {
            let name = relative_name(root, path);
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(&name);
            hash.update(bytes.start.to_le_bytes());
            hash.update(bytes.end.to_le_bytes());
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::change::Stamp;

    fn ranges(files: &[(&str, Range<u64>)]) -> Vec<FileRange> {
        let range = |(name, bytes): &(&str, Range<u64>)| FileRange {
            path: Path::new("root").join(name),
            bytes: bytes.clone(),
            stamp: Stamp::default(),
        };
        files.iter().map(range).collect()
    }

    fn fingerprint_of(train: &[(&str, Range<u64>)], validation: &[(&str, Range<u64>)]) -> String {
        fingerprint(Path::new("root"), &Split { train: ranges(train), validation: ranges(validation) })
    }

    #[test]
    fn the_fingerprint_is_the_documented_sha_256() {
        // The expected hash was computed with Python's hashlib and struct.
        let expected = "6dff6ad6ed922602c97ad801999d9e8a6b938017e8755b5d23aa97f6d0a1cb87";
        assert_eq!(fingerprint_of(&[("a/b.txt", 0..10), ("é", 0..300)], &[("c", 7..9)]), expected);
    }

    #[test]
    fn different_texts_have_different_fingerprints() {
        let texts = [
            fingerprint_of(&[("a", 0..10), ("b", 0..10)], &[]),
            fingerprint_of(&[("b", 0..10), ("a", 0..10)], &[]),
            fingerprint_of(&[("a", 0..10)], &[("b", 0..10)]),
            fingerprint_of(&[("a", 0..10)], &[]),
            fingerprint_of(&[("a", 0..9)], &[]),
            fingerprint_of(&[("a", 1..10)], &[]),
            fingerprint_of(&[], &[("a", 0..10)]),
            fingerprint_of(&[("ab", 0..10)], &[]),
        ];
        let different: std::collections::BTreeSet<_> = texts.iter().collect();
        assert_eq!(different.len(), texts.len(), "{texts:?}");
    }
}
