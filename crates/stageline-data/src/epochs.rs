//! Chooses the samples of each training step so that every sample occurs once per epoch: [`Epochs`].
//!
//! Input: the number of samples, a seed, and a step. Output: the indices of the step's samples. The code here, like
//! `sampler`, must not keep state from one step to the next.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::error::CorpusError;
use crate::key::key;
use crate::sampler::scale;

/// Largest number of samples whose order in an epoch is a shuffled list. The list is recomputed in every training step,
/// which takes too long for more samples, so a Feistel network replaces it.
const MOST_LISTED: u64 = 1 << 16;

/// The number of rounds of the Feistel network that permutes more than [`MOST_LISTED`] samples. From four rounds on, a
/// Feistel network with random functions is indistinguishable from a random permutation (Luby and Rackoff, 1988).
const ROUNDS: usize = 6;

/// Chooses the samples that each training step trains on, as a pure function of a seed and the step number. Every
/// sample occurs once in each epoch, in an order that depends on the seed and the epoch's number. A step may begin in
/// one epoch and end in the next.
///
/// A resumed run trains on the samples that an uninterrupted run would have seen, provided that all steps have the same
/// number of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epochs {
    samples: u64,
    seed: u64,
}

impl Epochs {
    /// Creates an [`Epochs`] over `samples` samples. Each epoch has its own order, which depends on `seed`.
    ///
    /// # Errors
    /// Returns [`CorpusError::OutOfRange`] if `samples` is 0.
    pub fn new(samples: u64, seed: u64) -> Result<Self, CorpusError> {
        if samples == 0 {
            return Err(CorpusError::OutOfRange { name: "samples", value: "0".into(), allowed: "at least 1" });
        }
        Ok(Self { samples, seed })
    }

    /// Returns the number of samples in an epoch.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the zero-based indices of the `count` samples of training step `step`. The time and memory for a call do
    /// not grow with the number of samples beyond 65,536.
    pub fn of_step(&self, step: u64, count: usize) -> Vec<u64> {
        let (first, samples) = (u128::from(step) * count as u128, u128::from(self.samples));
        let places = (first..first + count as u128).map(|at| ((at / samples) as u64, (at % samples) as u64));
        let places: Vec<_> = places.collect();
        let of_epoch = places.chunk_by(|a, b| a.0 == b.0).flat_map(|places| {
            let order = Order::of(self, places[0].0);
            places.iter().map(move |(_, place)| order.sample(*place))
        });
        of_epoch.collect()
    }
}

/// One epoch's sample order: maps a position in the epoch to a sample index.
enum Order {
    /// A shuffled list, for at most [`MOST_LISTED`] samples: element `i` is the index of the epoch's `i`-th sample.
    Listed(Vec<u64>),
    /// A pseudo-random permutation, for more than [`MOST_LISTED`] samples: a Feistel network over numbers of `2 * bits`
    /// bits, with one random key per round in `keys`. An output of `samples` or more is not a sample index, so the
    /// network is applied to it again (cycle walking).
    Network { samples: u64, bits: u32, keys: [u64; ROUNDS] },
}

impl Order {
    fn of(epochs: &Epochs, epoch: u64) -> Self {
        let mut rng = ChaCha8Rng::from_seed(key(epochs.seed, "stageline epochs"));
        rng.set_stream(epoch);
        let samples = epochs.samples;
        if samples > MOST_LISTED {
            let bits = (u64::BITS - (samples - 1).leading_zeros()).div_ceil(2);
            return Self::Network { samples, bits, keys: [(); ROUNDS].map(|()| rng.next_u64()) };
        }
        // A Fisher-Yates shuffle, in which every order is equally likely.
        let mut order: Vec<u64> = (0..samples).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, scale(rng.next_u64(), last as u64 + 1) as usize);
        }
        Self::Listed(order)
    }

    /// Returns the zero-based index of the sample that the epoch visits at position `place` (also zero-based).
    fn sample(&self, place: u64) -> u64 {
        let (samples, bits, keys) = match self {
            Self::Listed(order) => return order[place as usize],
            Self::Network { samples, bits, keys } => (*samples, *bits, keys),
        };
        let mut number = place;
        loop {
            let (mut left, mut right) = (number >> bits, number & ((1 << bits) - 1));
            for key in keys {
                (left, right) = (right, left ^ (mixed(right ^ key) >> (u64::BITS - bits)));
            }
            number = left << bits | right;
            // At most 3 in 4 numbers are too large to be a sample's index, so the loop ends after fewer than four
            // iterations on average.
            if number < samples {
                return number;
            }
        }
    }
}

/// Mixes the bits of `number`, so that each bit of the result depends on all of them: the finalizer of SplitMix64
/// (Steele, Lea and Flood, 2014).
fn mixed(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_sample_comes_once_an_epoch_also_if_a_step_spans_two() {
        let epochs = Epochs::new(10, 7).unwrap();
        let all: Vec<u64> = (0..10).flat_map(|step| epochs.of_step(step, 4)).collect();
        let of: Vec<&[u64]> = all.chunks(10).collect();
        for epoch in &of {
            assert_eq!(epoch.iter().collect::<BTreeSet<_>>().len(), 10, "{epoch:?}");
        }
        assert_ne!(of[0], of[1], "each epoch has its own order");
        assert_eq!(epochs.of_step(0, 25), all[..25], "a step may span several epochs");
        for step in [9, 0, 4, 7, 2, 5, 0] {
            assert_eq!(epochs.of_step(step, 4), all[4 * step as usize..][..4], "in any order of the steps");
        }
    }

    #[test]
    fn orders_depend_on_the_seed_and_are_uniform() {
        let order = |seed| Epochs::new(3, seed).unwrap().of_step(0, 3);
        assert_eq!(order(5), order(5));
        let mut counts = std::collections::BTreeMap::new();
        (0..6_000).for_each(|seed| *counts.entry(order(seed)).or_insert(0_usize) += 1);
        // The limit is five standard deviations around the expected count, a sixth of all seeds.
        assert!(counts.len() == 6 && counts.values().all(|count| count.abs_diff(1_000) < 150), "{counts:?}");
    }

    /// Tests orders of more than [`MOST_LISTED`] samples: each sample comes once, and the order differs between epochs
    /// and seeds. As in a random order, neighbours are a third of the samples apart on average.
    #[test]
    fn many_samples_come_once_an_epoch_in_random_order() {
        for samples in [MOST_LISTED + 1, 100_003, 1 << 18] {
            let order = |seed, epoch: u64| Epochs::new(samples, seed).unwrap().of_step(epoch, samples as usize);
            let first = order(3, 0);
            assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), samples as usize);
            assert!(first.iter().all(|sample| *sample < samples));
            for other in [order(3, 1), order(4, 0)] {
                let same = first.iter().zip(&other).filter(|(a, b)| a == b).count();
                assert!(same < 20, "{same} of {samples} samples are at the same place");
            }
            let apart = first.windows(2).map(|pair| pair[0].abs_diff(pair[1]) as f64).sum::<f64>();
            let mean = apart / (samples - 1) as f64 / samples as f64;
            // As shares of the number of samples, one distance has a standard deviation of 0.24, and the mean of all
            // less than 0.001.
            assert!((mean - 1.0 / 3.0).abs() < 0.005, "{mean}");
        }
        let large = Epochs::new(1 << 40, 7).unwrap();
        assert_eq!(large.of_step(1 << 30, 3), large.of_step(1 << 30, 3));
        assert!(large.of_step(5, 1000).iter().collect::<BTreeSet<_>>().len() == 1000);
    }

    #[test]
    fn no_sample_is_refused() {
        let message = Epochs::new(0, 1).unwrap_err().to_string();
        assert_eq!(message, "samples is 0; it must be at least 1");
        assert_eq!(Epochs::new(1, 1).unwrap().of_step(u64::MAX, 2), [0, 0]);
    }
}
