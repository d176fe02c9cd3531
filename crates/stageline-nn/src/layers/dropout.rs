//! [`Dropout`]: dropout whose mask depends only on the seed, layer, step and sample, not on stages, micro-batches or
//! threads.

use burn::module::Module;
use burn::tensor::{Bool, FloatDType, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::forward::samples::Samples;
use crate::layers::at_least_f32::at_least_f32;

/// The part of the random number generator's key that identifies dropout, so that other uses of the same seed, such as
/// the order of samples, draw different numbers.
const TAG: &[u8; 16] = b"stageline drop\0\0";

/// A dropout layer: in training only, sets each element to zero with a given probability, and scales the others by 1 /
/// (1 - probability) (Srivastava et al., 2014,
/// [jmlr.org/papers/v15/srivastava14a](https://jmlr.org/papers/v15/srivastava14a.html)).
///
/// The mask depends only on the seed, the layer, the step and the sample. It does not depend on the number of stages or
/// micro-batches, the schedule or thread timing. burn's own dropout, by contrast, draws from one generator that all
/// threads share. Outside the forward pass of a training step the layer returns its input unchanged; see [`Samples`].
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
    /// Returns a dropout layer that drops each element with the probability `probability`, from 0 to below 1. `seed`
    /// and `layer`, together with the step and the sample, determine which elements are dropped. Every dropout layer of
    /// a model needs a different `layer` number, or they drop the same elements.
    ///
    /// # Panics
    /// Panics if the probability is below 0, or at least 1.
    pub fn new(probability: f64, seed: u64, layer: u64) -> Self {
        assert!(
            (0.0..1.0).contains(&probability),
            "the dropout probability is {probability}; it must be at least 0 and less than 1"
        );
        Self { probability, seed, layer }
    }

    /// Drops random elements of an input `[rows, ...]`, scales the others, and returns a tensor of the same shape and
    /// dtype. The rows are the samples of the micro-batch. A sample may have several consecutive rows, if all samples
    /// have the same number of rows.
    ///
    /// # Panics
    /// Panics if the number of rows is not a multiple of the number of samples.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let Some(samples) = Samples::current().filter(|_| self.probability > 0.0) else { return input };
        let rows = input.dims()[0];
        assert!(
            rows.is_multiple_of(samples.count),
            "dropout got {rows} rows for {} samples; every sample must have the same number of rows",
            samples.count
        );
        let given = FloatDType::from(input.dtype());
        let dropped = Tensor::<D, Bool>::from_data(self.mask(samples, input.dims()), &input.device());
        // The scale is applied in at least f32, so that only the scaled element is rounded to the input's dtype.
        let wide = at_least_f32(given);
        let scaled = (input.cast(wide) * (1.0 / (1.0 - self.probability))).cast(given);
        scaled.mask_fill(dropped, 0.0)
    }

    /// Returns the dropout mask of a micro-batch's samples, of the shape `dims`. It is true for every dropped element.
    fn mask<const D: usize>(&self, samples: Samples, dims: [usize; D]) -> TensorData {
        let each = dims.iter().product::<usize>() / samples.count.max(1);
        let threshold = (self.probability * 2.0_f64.powi(32)) as u32;
        let mut mask = Vec::with_capacity(samples.count * each);
        for sample in samples.first..samples.first + samples.count {
            let mut random = self.stream(samples.step, sample);
            mask.extend((0..each).map(|_| random.next_u32() < threshold));
        }
        TensorData::new(mask, dims)
    }

    /// Returns the random number generator for the mask of one sample in one step. Its key contains the seed, the layer
    /// number and a constant for dropout. The step selects the ChaCha stream, and each sample has 2^32 blocks of the
    /// stream.
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

    #[test]
    fn random_streams_differ_by_purpose_layer_step_and_sample() {
        let first = |mut random: ChaCha8Rng| [random.next_u64(), random.next_u64()];
        let draw = |layer, step, sample| first(Dropout::new(0.5, 7, layer).stream(step, sample));
        let mut key = [0; 32];
        key[0] = 7;
        let bare = first(ChaCha8Rng::from_seed(key));
        key[8..25].copy_from_slice(b"stageline sampler");
        let sampler = first(ChaCha8Rng::from_seed(key));
        let layer = u64::from_le_bytes(*b"stagelin");
        let mut all =
            vec![bare, sampler, draw(0, 0, 0), draw(1, 0, 0), draw(0, 1, 0), draw(0, 0, 1), draw(layer, 0, 0)];
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    }

    #[test]
    fn the_mask_follows_the_sample_not_the_micro_batch() {
        let dropout = Dropout::new(0.3, 7, 1);
        let whole = dropped(&dropout, 2, 0, 6, 6);
        let pieces = [(0, 1), (1, 2), (3, 3)].map(|(first, count)| dropped(&dropout, 2, first, count, count));
        assert_eq!(whole, pieces.concat());
        // With two rows for every sample, the second row continues the sample's random stream.
        let rows = dropped(&dropout, 2, 0, 3, 6);
        assert_eq!(rows[..50], whole[..50]);
        assert_eq!(rows[..100], dropped(&dropout, 2, 0, 1, 2));
    }

    #[test]
    fn the_mask_depends_on_seed_layer_step_and_sample() {
        let reference = dropped(&Dropout::new(0.5, 1, 1), 1, 1, 1, 1);
        for (seed, layer, step, sample) in [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)] {
            assert_ne!(dropped(&Dropout::new(0.5, seed, layer), step, sample, 1, 1), reference);
        }
    }

    #[test]
    fn elements_are_dropped_with_the_probability_and_the_others_scaled() {
        let mask = dropped(&Dropout::new(0.2, 3, 0), 0, 0, 400, 400);
        let zeros = mask.iter().filter(|value| **value == 0.0).count() as f64 / mask.len() as f64;
        assert!((zeros - 0.2).abs() < 0.01, "{zeros}"); // The bound is 3.5 standard deviations of 20,000 draws.
        assert!(mask.iter().all(|value| [0.0, 1.25].contains(value)));
    }

    #[test]
    fn dropout_returns_its_input_outside_training() {
        let ones = Tensor::<2>::ones([2, 3], &Device::flex());
        let left = Dropout::new(0.9, 0, 0).forward(ones.clone());
        assert!(left.equal(ones).all().into_scalar::<bool>());
    }

    #[test]
    #[should_panic(expected = "dropout got 5 rows for 2 samples")]
    fn rows_that_do_not_divide_among_samples_are_rejected() {
        dropped(&Dropout::new(0.5, 0, 0), 0, 0, 2, 5);
    }
}
