//! Derives the keys of random number streams for sampling, so that one seed gives independent random numbers for each
//! purpose.
//!
//! Input: a seed and the name of a purpose. Output: the key of a random stream. The key must not depend on anything
//! else, because a resumed run must draw the same random numbers.

/// Returns the ChaCha key of a random number stream: the seed as 8 little-endian bytes, then `tag`, then zeros. `tag`
/// names the stream's purpose, such as `stageline sampler`.
///
/// Each purpose has its own tag, in all crates, so streams of different purposes differ even for equal seeds and stream
/// numbers. A change of a tag, or of this layout, changes the random numbers that a resumed run draws.
///
/// # Panics
/// Panics if the tag is longer than 24 bytes or not ASCII.
pub(crate) fn key(seed: u64, tag: &str) -> [u8; 32] {
    assert!(tag.len() <= 24 && tag.is_ascii(), "the tag {tag:?} is not at most 24 ASCII bytes");
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..8 + tag.len()].copy_from_slice(tag.as_bytes());
    key
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn a_key_is_the_seed_the_tag_and_zeros() {
        let expected = *b"\xef\xcd\xab\x89\x67\x45\x23\x01stageline sampler\0\0\0\0\0\0\0";
        assert_eq!(key(0x0123_4567_89ab_cdef, "stageline sampler"), expected);
        assert_eq!(key(0, "a tag of 24 ASCII bytes!"), *b"\0\0\0\0\0\0\0\0a tag of 24 ASCII bytes!");
    }

    #[test]
    fn purposes_with_the_same_seed_and_number_have_different_streams() {
        let first = |key| {
            let mut rng = ChaCha8Rng::from_seed(key);
            rng.set_stream(3);
            [rng.next_u64(), rng.next_u64()]
        };
        let mut streams = ["stageline sampler", "stageline split", "stageline dropout"].map(|tag| first(key(7, tag)));
        streams.sort_unstable();
        assert!(streams.windows(2).all(|pair| pair[0] != pair[1]), "{streams:?}");
    }

    #[test]
    #[should_panic(expected = "is not at most 24 ASCII bytes")]
    fn a_tag_of_25_bytes_is_refused() {
        key(0, "a tag that has 25 bytes!!");
    }
}
