//! What a corpus is made of, as a hash that two runs can compare.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::extent::Extent;
use crate::split::Sides;
use crate::walk::relative_name;

/// The SHA-256, in hexadecimal, over training and then validation: the number of its extents, and of each the length of
/// its relative path, that path, and where its bytes begin and end. Numbers are 64 bits, little endian.
///
/// Checkpoints keep it, so it stays the same in every release.
pub(crate) fn fingerprint(root: &Path, sides: &Sides) -> String {
    let mut hash = Sha256::new();
    for side in [&sides.train, &sides.validation] {
        hash.update((side.len() as u64).to_le_bytes());
        for Extent { path, bytes, .. } in side {
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

    fn extents(files: &[(&str, Range<u64>)]) -> Vec<Extent> {
        let extent = |(name, bytes): &(&str, Range<u64>)| Extent {
            path: Path::new("root").join(name),
            bytes: bytes.clone(),
            stamp: Stamp::default(),
        };
        files.iter().map(extent).collect()
    }

    fn of(train: &[(&str, Range<u64>)], validation: &[(&str, Range<u64>)]) -> String {
        fingerprint(Path::new("root"), &Sides { train: extents(train), validation: extents(validation) })
    }

    #[test]
    fn it_is_the_sha_256_of_what_its_docs_say() {
        // Made with Python's hashlib and struct.
        let expected = "6dff6ad6ed922602c97ad801999d9e8a6b938017e8755b5d23aa97f6d0a1cb87";
        assert_eq!(of(&[("a/b.txt", 0..10), ("é", 0..300)], &[("c", 7..9)]), expected);
    }

    #[test]
    fn whatever_makes_another_text_makes_another_fingerprint() {
        let texts = [
            of(&[("a", 0..10), ("b", 0..10)], &[]),
            of(&[("b", 0..10), ("a", 0..10)], &[]),
            of(&[("a", 0..10)], &[("b", 0..10)]),
            of(&[("a", 0..10)], &[]),
            of(&[("a", 0..9)], &[]),
            of(&[("a", 1..10)], &[]),
            of(&[], &[("a", 0..10)]),
            of(&[("ab", 0..10)], &[]),
        ];
        let different: std::collections::BTreeSet<_> = texts.iter().collect();
        assert_eq!(different.len(), texts.len(), "{texts:?}");
    }
}
