//! SHA-256, in hexadecimal.

use sha2::{Digest, Sha256};

/// Characters of a hash.
pub(crate) const HEX: usize = 64;

/// The hash of `bytes`.
pub(crate) fn of(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}

/// The hash of what `hasher` has seen.
pub(crate) fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_well_known_one() {
        assert_eq!(of(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(of(b"").len(), HEX);
    }
}
