//! Chooses the samples of a step so that each comes once an epoch: [`Epochs`].
//!
//! Input: the number of samples, a seed, and a step. Output: the indices of the samples of the step. Like those of the
//! sampler of windows, they must not depend on the steps before; the orders of two epochs are kept to save time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::error::CorpusError;
use crate::key::key;
use crate::sampler::scale;

/// Chooses the samples that each training step trains on, as a pure function of a seed and the step. Every sample comes
/// once in each epoch, in an order that the seed and the number of the epoch decide. A step may begin in one epoch and
/// end in the next.
///
/// A resumed run trains on the samples that an uninterrupted run would have seen, if all steps have the same number of
/// samples.
#[derive(Clone, Debug)]
pub struct Epochs {
    samples: u64,
    seed: u64,
    /// The orders of the epochs that were used last, at most [`KEPT`] of them.
    orders: Arc<Mutex<VecDeque<Order>>>,
}

/// The number of an epoch, and the indices of its samples in their order.
type Order = (u64, Arc<[u64]>);

/// The number of epochs whose orders are kept. At the end of an epoch, threads read samples of two of them.
const KEPT: usize = 2;

impl Epochs {
    /// Creates a sampler of epochs over `samples` samples.
    ///
    /// # Errors
    /// Returns [`CorpusError::OutOfRange`] if `samples` is 0.
    pub fn new(samples: u64, seed: u64) -> Result<Self, CorpusError> {
        if samples == 0 {
            return Err(CorpusError::OutOfRange { name: "samples", value: "0".into(), allowed: "at least 1" });
        }
        Ok(Self { samples, seed, orders: Arc::default() })
    }

    /// Returns the number of samples in an epoch.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the zero-based indices of the `count` samples of training step `step`.
    ///
    /// The first call for an epoch shuffles its samples. The order takes 8 bytes of memory for each sample.
    pub fn of_step(&self, step: u64, count: usize) -> Vec<u64> {
        let (first, samples) = (u128::from(step) * count as u128, u128::from(self.samples));
        let mut indices = Vec::with_capacity(count);
        for at in first..first + count as u128 {
            indices.push(((at / samples) as u64, (at % samples) as usize));
        }
        let of_epoch = indices.chunk_by(|a, b| a.0 == b.0).flat_map(|places| {
            let order = self.order(places[0].0);
            places.iter().map(move |(_, place)| order[*place]).collect::<Vec<_>>()
        });
        of_epoch.collect()
    }

    /// Returns the sample indices in an epoch's order, which is kept for later calls.
    fn order(&self, epoch: u64) -> Arc<[u64]> {
        // Threads that need the same order wait here until one of them has made it.
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, order)) = orders.iter().find(|(kept, _)| *kept == epoch) {
            return Arc::clone(order);
        }
        let order: Arc<[u64]> = self.shuffled(epoch).into();
        orders.truncate(KEPT - 1);
        orders.push_front((epoch, Arc::clone(&order)));
        order
    }

    /// Returns the sample indices in an epoch's order, by a Fisher-Yates shuffle.
    fn shuffled(&self, epoch: u64) -> Vec<u64> {
        let mut rng = ChaCha8Rng::from_seed(key(self.seed, "stageline epochs"));
        rng.set_stream(epoch);
        let mut order: Vec<u64> = (0..self.samples).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, scale(rng.next_u64(), last as u64 + 1) as usize);
        }
        order
    }
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
        // Five standard deviations around a sixth.
        assert!(counts.len() == 6 && counts.values().all(|count| count.abs_diff(1_000) < 150), "{counts:?}");
    }

    #[test]
    fn no_sample_is_refused() {
        let message = Epochs::new(0, 1).unwrap_err().to_string();
        assert_eq!(message, "samples is 0; it must be at least 1");
        assert_eq!(Epochs::new(1, 1).unwrap().of_step(u64::MAX, 2), [0, 0]);
    }
}
