//! Dropout whose mask does not depend on how the training is run.

use burn::module::Module;
use burn::tensor::{FloatDType, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::nn::forward::samples::Samples;

/// Tells these random numbers from those for other purposes with the same seed, such as the order of samples.
const TAG: &[u8; 16] = b"stageline drop\0\0";

/// Sets elements to zero with a probability, and scales the others by 1 / (1 - probability), in training only
/// (Srivastava et al., 2014, [jmlr.org/papers/v15/srivastava14a](https://jmlr.org/papers/v15/srivastava14a.html)).
///
/// Which elements depends on the seed, the layer, the step and the sample, and on nothing else: not on the number of
/// stages or micro-batches, the schedule or the timing of threads. (burn's own dropout draws from one generator that
/// all threads share.) Outside the forward of a training step it changes nothing; see [`Samples`].
///
/// The mask is drawn on the host and moved to the input's device.
#[derive(Module, Debug)]
pub struct Dropout {
    #[module(skip)]
    probability: f64,
    #[module(skip)]
    seed: u64,
    #[module(skip)]
    layer: u64,
}

impl Dropout {
    /// Give every dropout of a model another `layer`, or they drop the same elements.
    ///
    /// # Panics
    /// If the probability is not in 0..1.
    pub fn new(probability: f64, seed: u64, layer: u64) -> Self {
        assert!(
            (0.0..1.0).contains(&probability),
            "a dropout probability of {probability}; give at least 0 and less than 1"
        );
        Self { probability, seed, layer }
    }

    /// Applies it to `[rows, ...]`, where the rows are the micro-batch's samples, or as many consecutive rows for every
    /// sample.
    ///
    /// # Panics
    /// If the rows cannot be shared out among the samples.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let Some(samples) = Samples::current().filter(|_| self.probability > 0.0) else { return input };
        let rows = input.dims()[0];
        assert!(
            rows.is_multiple_of(samples.count),
            "dropout got {rows} rows for {} samples; give it a tensor with as many rows for every sample",
            samples.count
        );
        let mask = Tensor::<D>::from_data(self.mask(samples, input.dims()), &input.device());
        input.clone() * mask.cast(FloatDType::from(input.dtype()))
    }

    /// What every element is multiplied by.
    fn mask<const D: usize>(&self, samples: Samples, dims: [usize; D]) -> TensorData {
        let each = dims.iter().product::<usize>() / samples.count.max(1);
        let kept = (1.0 / (1.0 - self.probability)) as f32;
        let threshold = (self.probability * 2.0_f64.powi(32)) as u32;
        let mut mask = Vec::with_capacity(samples.count * each);
        for sample in samples.first..samples.first + samples.count {
            let mut random = self.stream(samples.step, sample);
            mask.extend((0..each).map(|_| if random.next_u32() < threshold { 0.0 } else { kept }));
        }
        TensorData::new(mask, dims)
    }

    /// The random numbers of a sample in a step. The key is the seed, the layer and the tag of dropout, the ChaCha
    /// stream is the step, and every sample has 2^32 blocks of it.
    fn stream(&self, step: usize, sample: usize) -> ChaCha8Rng {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..16].copy_from_slice(&self.layer.to_le_bytes());
        key[16..].copy_from_slice(TAG);
        let mut random = ChaCha8Rng::from_seed(key);
        random.set_stream(step as u64);
        random.set_word_pos((sample as u128) << 36);
        random
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn dropped(dropout: &Dropout, step: usize, first: usize, count: usize, rows: usize) -> Vec<f32> {
        let ones = Tensor::<2>::ones([rows, 50], &Device::flex());
        Samples { step, first, count }.during(|| dropout.forward(ones)).into_data().iter::<f32>().collect()
    }

    /// With a bare seed as key, the first numbers of the first layer's first sample were those of a data sampler.
    #[test]
    fn streams_of_other_purposes_layers_steps_and_samples_are_others() {
        let first = |mut random: ChaCha8Rng| [random.next_u64(), random.next_u64()];
        let of = |layer, step, sample| first(Dropout::new(0.5, 7, layer).stream(step, sample));
        let mut key = [0; 32];
        key[0] = 7;
        let bare = first(ChaCha8Rng::from_seed(key));
        key[8..25].copy_from_slice(b"stageline sampler");
        let sampler = first(ChaCha8Rng::from_seed(key));
        let layer = u64::from_le_bytes(*b"stagelin");
        let mut all = vec![bare, sampler, of(0, 0, 0), of(1, 0, 0), of(0, 1, 0), of(0, 0, 1), of(layer, 0, 0)];
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    }

    #[test]
    fn the_mask_follows_the_sample_not_the_micro_batch() {
        let dropout = Dropout::new(0.3, 7, 1);
        let whole = dropped(&dropout, 2, 0, 6, 6);
        let pieces = [(0, 1), (1, 2), (3, 3)].map(|(first, count)| dropped(&dropout, 2, first, count, count));
        assert_eq!(whole, pieces.concat());
        // Several rows a sample: each sample's stream goes on through its rows.
        let rows = dropped(&dropout, 2, 0, 3, 6);
        assert_eq!(rows[..50], whole[..50]);
        assert_eq!(rows[..100], dropped(&dropout, 2, 0, 1, 2));
    }

    #[test]
    fn step_sample_layer_and_seed_all_count() {
        let reference = dropped(&Dropout::new(0.5, 1, 1), 1, 1, 1, 1);
        for (seed, layer, step, sample) in [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)] {
            assert_ne!(dropped(&Dropout::new(0.5, seed, layer), step, sample, 1, 1), reference);
        }
    }

    #[test]
    fn the_mean_is_kept() {
        let mask = dropped(&Dropout::new(0.2, 3, 0), 0, 0, 400, 400);
        let zeros = mask.iter().filter(|value| **value == 0.0).count() as f64 / mask.len() as f64;
        assert!((zeros - 0.2).abs() < 0.01, "{zeros}"); // 3.5 standard deviations of 20,000 draws
        assert!(mask.iter().all(|value| [0.0, 1.25].contains(value)));
    }

    #[test]
    fn it_does_nothing_outside_of_training() {
        let ones = Tensor::<2>::ones([2, 3], &Device::flex());
        let left = Dropout::new(0.9, 0, 0).forward(ones.clone());
        assert!(left.equal(ones).all().into_scalar::<bool>());
    }

    #[test]
    #[should_panic(expected = "dropout got 5 rows for 2 samples")]
    fn rows_that_belong_to_no_sample_are_refused() {
        dropped(&Dropout::new(0.5, 0, 0), 0, 0, 2, 5);
    }
}
