//! Derives two random numbers for each corpus file from a seed and the file's path. They are the same on every machine
//! and in every release.
//!
//! The standard library may change the algorithm of its hasher, so this module has its own. FNV-1a hashes the seed and
//! the path to a state, from which SplitMix64 generates the random numbers.

/// The two random numbers of one corpus file: `rank` orders the files for sampling, and `share` decides between
/// training and validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Draws {
    /// Sampling order of the corpus file: files are sampled in ascending order of this uniform random 64-bit number.
    pub(crate) rank: u64,
    /// Uniform random number in `[0, 1)` that splits training from validation: the corpus file is held out if its share
    /// is below the validation fraction.
    pub(crate) share: f64,
}

/// Returns the two random numbers (`rank` and `share`) of the corpus file at `path`, which depend only on `seed` and
/// `path`. `path` is relative to the root of the corpus and has `/` between its components.
///
/// FNV-1a over the seed (8 bytes, little-endian) and the path gives the state of a SplitMix64 generator, whose first
/// two outputs are the random numbers.
pub(crate) fn draws(seed: u64, path: &str) -> Draws {
    let mut state = fnv1a(fnv1a(FNV_OFFSET, &seed.to_le_bytes()), path.as_bytes());
    let rank = split_mix_64(&mut state);
    let share = unit_interval(split_mix_64(&mut state));
    Draws { rank, share }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// Updates the 64-bit FNV-1a hash `state` with `bytes`, and returns the new hash.
fn fnv1a(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

/// Returns the next output of a SplitMix64 random generator (Steele, Lea and Flood, 2014), and advances its `state`.
fn split_mix_64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Converts 64 random bits to a number in `[0, 1)`. Only the upper 53 bits are used, because an `f64` is exact to 53
/// bits.
fn unit_interval(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1a_matches_its_published_vectors() {
        assert_eq!(fnv1a(FNV_OFFSET, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(FNV_OFFSET, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(FNV_OFFSET, b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn split_mix_64_matches_its_published_vectors() {
        let mut state = 1_234_567;
        let outputs: Vec<u64> = (0..3).map(|_| split_mix_64(&mut state)).collect();
        assert_eq!(outputs, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn the_unit_interval_is_half_open() {
        assert_eq!(unit_interval(0), 0.0);
        assert_eq!(unit_interval(1 << 63), 0.5);
        assert!(unit_interval(u64::MAX) < 1.0);
    }

    #[test]
    fn seed_and_path_both_matter() {
        let one = draws(1, "src/lib.rs");
        assert_eq!(one, draws(1, "src/lib.rs"));
        assert_ne!(one, draws(2, "src/lib.rs"));
        assert_ne!(one, draws(1, "src/main.rs"));
    }

    #[test]
    fn the_share_is_uniform_whatever_the_rank() {
        let all: Vec<Draws> = (0..20_000).map(|i| draws(3, &format!("src/file{i}.rs"))).collect();
        let low: Vec<&Draws> = all.iter().filter(|draws| draws.rank < u64::MAX / 4).collect();
        // The limits are five standard deviations around the expected counts: a quarter of all files, and a tenth of
        // these.
        assert!(low.len().abs_diff(5_000) < 310, "{}", low.len());
        let held_out = low.iter().filter(|draws| draws.share < 0.1).count();
        assert!(held_out.abs_diff(low.len() / 10) < 110, "{held_out} of {}", low.len());
    }
}
