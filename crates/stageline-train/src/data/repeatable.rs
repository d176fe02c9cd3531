//! Checks, before training, that the data returns the same batch each time for the same step.

use std::slice::from_ref;

use anyhow::{Result, ensure};
use stageline::Batch;

use crate::data::Data;
use crate::data::batch_fingerprint::fingerprint_of;

/// Returns the first step's batch with only its first sample, which is read twice to check that the data is repeatable.
///
/// # Errors
/// Returns an error if the sample cannot be read, or if the two reads differ.
pub fn first_sample<D: Data>(data: &D) -> Result<Batch<D::Input, D::Target>> {
    let (first, second) = (data.batch(0, 1)?, data.batch(0, 1)?);
    ensure!(
        fingerprint_of(from_ref(&first)) == fingerprint_of(&[second]),
        "`Data::batch(0, 1)` returned two different batches in two calls; it must return the same batch for the same step each time, \
         or a resumed training sees other samples. `Tensor::random` in `batch` is a usual cause, because all threads share burn's \
         generator: use a generator of your own, seeded with `run.seed()` and the number of the sample"
    );
    Ok(first)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use burn::tensor::{Device, Int, Tensor, TensorData};

    use super::*;

    /// A source of batches for tests. If `changes` is true, later calls return different targets than the first call.
    struct Source {
        changes: bool,
        is_second: AtomicBool,
    }

    impl Data for Source {
        type Input = Tensor<1>;
        type Target = Tensor<1, Int>;

        fn batch(&self, _: usize, samples: usize) -> Result<Batch<Tensor<1>, Tensor<1, Int>>> {
            let cpu = Device::flex();
            let target = i32::from(self.is_second.fetch_or(true, Ordering::Relaxed) && self.changes);
            let targets = TensorData::new(vec![target; samples], [samples]);
            // NaN does not equal itself, but two reads of it have the same bits.
            Ok(Batch::new(Tensor::full([samples], f32::NAN, &cpu), Tensor::from_data(targets, &cpu)))
        }
    }

    #[test]
    fn a_source_whose_batch_changes_between_two_calls_is_refused() {
        let source = |changes| Source { changes, is_second: AtomicBool::new(false) };
        assert!(first_sample(&source(false)).is_ok());
        let error = first_sample(&source(true)).unwrap_err().to_string();
        assert!(error.contains("must return the same batch") && error.contains("`run.seed()`"), "{error}");
    }
}
