//! Chooses the training windows of a step from a seed and the step number: [`Sampler`].
//!
//! Input: the lengths of a text and of a window, a seed, and a step. Output: the start offsets of windows. The sampler
//! must not read the text, or keep state from one step to the next.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::error::CorpusError;
use crate::key::key;

/// Chooses the windows of a text that each training step trains on, as a pure function of a seed and the step number. A
/// window is one training sample: a range of the text with a fixed length.
///
/// The sampler has no mutable state, so the windows of different steps can be computed in any order and in any process.
/// A resumed run therefore trains on the windows that an uninterrupted run would have seen.
///
/// A model that predicts the next byte from a context of C bytes trains on windows of C + 1 bytes. The input is all
/// bytes of a window but the last, and the target all but the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampler {
    text_len: u64,
    window: usize,
    seed: u64,
}

impl Sampler {
    /// Creates a sampler that chooses windows of `window` bytes in a text of `text_len` bytes. For a token file, both
    /// lengths are in tokens. Samplers with equal lengths and an equal `seed` choose the same windows.
    ///
    /// # Errors
    /// - [`CorpusError::OutOfRange`] if `window` is 0.
    /// - [`CorpusError::TextTooShort`] if the text is shorter than a window.
    pub fn new(text_len: u64, window: usize, seed: u64) -> Result<Self, CorpusError> {
        if window == 0 {
            let (value, allowed) = (window.to_string(), "at least 1");
            return Err(CorpusError::OutOfRange { name: "window", value, allowed });
        }
        if text_len < window as u64 {
            return Err(CorpusError::TextTooShort { text_len, window });
        }
        Ok(Self { text_len, window, seed })
    }

    /// Returns the start offsets, in the text, of the `count` windows of training step `step`. They are in bytes, or in
    /// tokens for a token file.
    ///
    /// The offsets are uniformly distributed over `0..=text_len - window`, and drawn with replacement. A larger `count`
    /// only appends windows: `offsets(step, 8)[..4]` is `offsets(step, 4)`.
    pub fn offsets(&self, step: u64, count: usize) -> Vec<u64> {
        let mut rng = ChaCha8Rng::from_seed(key(self.seed, "stageline sampler"));
        rng.set_stream(step);
        let starts = self.text_len - self.window as u64 + 1;
        (0..count).map(|_| scale(rng.next_u64(), starts)).collect()
    }

    /// Returns the start offsets of `count` windows that are spread evenly over the text, in ascending order and
    /// without overlap. They are in bytes, or in tokens for a token file.
    ///
    /// If the text has no room for `count` windows, fewer are returned: `text_len / window`, rounded down. The windows
    /// are the same for every seed, so that validation losses can be compared.
    pub fn evenly(&self, count: usize) -> Vec<u64> {
        let count = (count as u64).min(self.text_len / self.window as u64);
        // Adjacent offsets differ by text_len / count, rounded up or down, which is at least the length of a window.
        let start = |i| u128::from(i) * u128::from(self.text_len) / u128::from(count);
        (0..count).map(|i| start(i) as u64).collect()
    }
}

/// Maps 64 uniform random bits to an almost uniform integer in `0..n`: the upper 64 bits of the 128-bit product
/// `bits * n`. The bias (the deviation from uniform probabilities) is below `n / 2^64`.
pub(crate) fn scale(bits: u64, n: u64) -> u64 {
    ((u128::from(bits) * u128::from(n)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_chacha8_of_the_tagged_seed_and_the_step() {
        // The expected numbers come from tests/chacha8.py, an independent implementation of ChaCha8 after RFC 8439.
        // With 2^63 possible starts, an offset is half of the random number. A ChaCha block has eight numbers, so the
        // ninth number is the first of the second block.
        let sampler = Sampler::new(1 << 63, 1, 0).unwrap();
        assert_eq!(sampler.offsets(0, 2), [0x4a13_2f20_fdb6_1f74 >> 1, 0x3319_c7d2_ff6b_7e0f >> 1]);
        let sampler = Sampler::new(1 << 63, 1, 0x0123_4567_89ab_cdef).unwrap();
        let offsets = sampler.offsets(0x1_0000_0005, 9);
        assert_eq!(offsets[..2], [0xcfc6_9450_2034_d932 >> 1, 0x71ce_0f76_a116_318c >> 1]);
        assert_eq!(offsets[8], 0x6cce_043e_f027_5436 >> 1);
    }

    #[test]
    fn the_untagged_stream_of_the_same_seed_and_step_differs() {
        for (seed, step) in [(0_u64, 0), (7, 0), (7, 3)] {
            let mut untagged = [0; 32];
            untagged[..8].copy_from_slice(&seed.to_le_bytes());
            let mut rng = ChaCha8Rng::from_seed(untagged);
            rng.set_stream(step);
            let offsets = Sampler::new(1 << 63, 1, seed).unwrap().offsets(step, 4);
            assert_ne!(offsets, [(); 4].map(|()| rng.next_u64() >> 1));
        }
    }

    #[test]
    fn a_step_is_a_pure_function_of_seed_and_step() {
        let sampler = Sampler::new(1_000_000, 65, 5).unwrap();
        let in_order: Vec<_> = (0..4).map(|step| sampler.offsets(step, 8)).collect();
        let resumed = Sampler::new(1_000_000, 65, 5).unwrap();
        for step in [3, 1, 0, 2] {
            assert_eq!(resumed.offsets(step as u64, 8), in_order[step]);
        }
        assert_eq!(sampler.offsets(2, 5), in_order[2][..5]);
    }

    #[test]
    fn steps_and_seeds_differ() {
        let sampler = Sampler::new(1 << 40, 65, 5).unwrap();
        let other = Sampler::new(1 << 40, 65, 6).unwrap();
        assert_ne!(sampler.offsets(0, 8), sampler.offsets(1, 8));
        assert_ne!(sampler.offsets(0, 8), other.offsets(0, 8));
        let mut all: Vec<u64> = (0..100).flat_map(|step| sampler.offsets(step, 8)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 800, "no two windows of 100 steps are the same");
    }

    #[test]
    fn offsets_are_uniform_up_to_the_last_window() {
        let sampler = Sampler::new(13, 4, 1).unwrap(); // 10 possible start offsets
        let mut counts = [0_usize; 10];
        for start in sampler.offsets(0, 10_000) {
            counts[start as usize] += 1; // panics if the window does not fit into the text
        }
        // The limit is five standard deviations around the expected count, a tenth of all offsets.
        assert!(counts.iter().all(|count| count.abs_diff(1_000) < 150), "{counts:?}");
    }

    #[test]
    fn a_window_as_long_as_the_text_starts_at_0() {
        let sampler = Sampler::new(65, 65, 1).unwrap();
        assert_eq!(sampler.offsets(9, 3), [0, 0, 0]);
        assert_eq!(sampler.evenly(3), [0]);
    }

    #[test]
    fn even_windows_are_disjoint_spread_and_inside() {
        for (text_len, window, count) in [(100, 10, 10), (109, 10, 10), (1_003, 7, 13), (u64::MAX, 65, 9)] {
            let starts = Sampler::new(text_len, window, 0).unwrap().evenly(count);
            assert_eq!(starts.len(), count);
            let ends = starts[1..].iter().copied().chain([text_len]);
            for (&start, end) in starts.iter().zip(ends) {
                let (gap, share) = (end - start, text_len / count as u64);
                assert!(gap >= window as u64, "{gap} bytes from {start} on hold no window of {window}");
                assert!(gap == share || gap == share + 1, "{gap} bytes from {start} on, not {share}");
            }
        }
    }

    #[test]
    fn even_windows_are_as_many_as_fit() {
        let sampler = Sampler::new(39, 10, 0).unwrap();
        assert_eq!(sampler.evenly(100), [0, 13, 26]);
        assert!(sampler.evenly(0).is_empty());
    }

    #[test]
    fn a_text_shorter_than_a_window_is_refused_with_both_and_the_remedy() {
        let error = Sampler::new(64, 65, 0).unwrap_err();
        assert!(matches!(error, CorpusError::TextTooShort { text_len: 64, window: 65 }));
        let message = error.to_string();
        for part in ["the length 64", "65", "in bytes, or in tokens", "shorten the window", "max_bytes"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn an_empty_window_is_refused() {
        let error = Sampler::new(64, 0, 0).unwrap_err();
        assert_eq!(error.to_string(), "window is 0; it must be at least 1");
    }
}
