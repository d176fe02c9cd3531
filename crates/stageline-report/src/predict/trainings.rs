//! Predicts how long training runs with other plans take to reach a logged run's final loss, from the noise scale of
//! that run's gradient.

use std::collections::BTreeSet;

use super::error::PredictError;
use super::measured::Measured;
use super::prediction::Prediction;
use super::target::Target;
use crate::log::NoiseScales;

/// Maximum number of micro-batches (M) of the training runs that are predicted and compared.
const MOST: usize = 256;

/// A predicted training run with given settings, up to the step at which it reaches the logged run's final loss (after
/// its last step). "Tokens" of a training run are the loss weight of its targets; in most models, the number of
/// unmasked tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictedTraining {
    /// The number of micro-batches (M) per step in each replica of a predicted training run.
    pub micro_batches: usize,
    /// The loss weight of a batch in a predicted training run: the sum of the weights of its targets over all replicas.
    /// In most models, it is the number of unmasked tokens in the batch.
    pub batch: f64,
    /// The predicted step time, bubble and memory of a training run.
    pub prediction: Prediction,
    /// The predicted number of optimizer steps, not rounded, until a training run reaches the logged run's final loss;
    /// `None` if the noise scale of the logged run's gradient is not known.
    pub steps: Option<f64>,
}

impl PredictedTraining {
    /// Returns the predicted throughput of a training run: the loss weight of the targets that it processes per second.
    /// In most models, this is the number of unmasked tokens per second.
    pub fn tokens_per_s(&self) -> f64 {
        self.batch / self.prediction.step
    }

    /// Returns the predicted number of tokens (more precisely, the sum of the targets' loss weights) that a training
    /// run processes until it reaches the logged run's final loss. The result is `None` if the number of steps is not
    /// known.
    pub fn tokens(&self) -> Option<f64> {
        Some(self.steps? * self.batch)
    }

    /// Returns the predicted time, in seconds, until a training run reaches the logged run's final loss; `None` if the
    /// number of steps is not known.
    pub fn seconds(&self) -> Option<f64> {
        Some(self.steps? * self.prediction.step)
    }

    /// Returns the predicted peak memory, in bytes, of the worker that needs the most in a training run; `None` if the
    /// logged run did not measure memory.
    pub fn peak_bytes(&self) -> Option<f64> {
        self.prediction.peak_bytes.iter().flatten().copied().reduce(f64::max)
    }
}

/// Returns the numbers of micro-batches to compare training runs at, up to 256. They are the powers of two, and their
/// products with the number of workers, because some schedules have plans only for multiples of the number of workers.
pub(super) fn choices(workers: usize) -> BTreeSet<usize> {
    let powers = || (0..).map(|power| 1 << power).take_while(|number| *number <= MOST);
    powers().chain(powers().map(|number| number.saturating_mul(workers)).filter(|number| *number <= MOST)).collect()
}

impl Measured {
    /// Predicts training runs with the plan `target`, up to the logged run's final loss. There is one for `target`'s
    /// number of micro-batches, and one for each of several other numbers up to 256. Numbers for which the schedule has
    /// no plan are skipped.
    ///
    /// `noise` is the [noise scale](crate::RunLog::noise_scales) of the logged run's gradient. Without it, no number of
    /// steps is predicted.
    ///
    /// # Errors
    /// Returns the errors of [`predict`](Self::predict), except for a number of micro-batches that the schedule lacks.
    pub fn trainings(
        &self,
        noise: Option<&NoiseScales>,
        target: &Target,
    ) -> Result<Vec<PredictedTraining>, PredictError> {
        let (mut found, target) = (Vec::new(), &self.with_its_cut(target)?);
        for micro_batches in choices(target.workers).into_iter().chain([target.micro_batches]) {
            found.extend(self.training(noise, target, micro_batches)?);
        }
        found.sort_by_key(|training| training.micro_batches);
        found.dedup_by_key(|training| training.micro_batches);
        Ok(found)
    }

    /// Predicts a training run with the plan `target`, but with another number of micro-batches, up to the logged run's
    /// final loss. Returns `None` if the schedule has no plan for this number, or only one that deadlocks with the
    /// run's channel capacity. All other errors of [`predict`](Self::predict) are returned.
    pub(super) fn training(
        &self,
        noise: Option<&NoiseScales>,
        target: &Target,
        micro_batches: usize,
    ) -> Result<Option<PredictedTraining>, PredictError> {
        let batch = self.weight * micro_batches as f64;
        let steps = noise.map(|noise| noise.steps(batch));
        let of = |prediction| PredictedTraining { micro_batches, batch, prediction, steps };
        Ok(self.predict_with(target, micro_batches)?.map(of))
    }
}
