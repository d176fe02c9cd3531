//! Predicts how long a training takes to the same loss with other numbers of micro-batches, from the noise of its
//! gradient.

use super::{Measured, PredictError, Prediction, Target};
use crate::log::{RunLog, median};

/// A training with another number of micro-batches that reaches the loss of a logged run, as its gradient noise
/// predicts it.
#[derive(Clone, Debug, PartialEq)]
pub struct Accumulation {
    /// The number of micro-batches (M) in a step of each replica.
    pub micro_batches: usize,
    /// The weight of a batch's targets; in most models, its number of tokens.
    pub batch: f64,
    /// The predicted step time, bubble, throughput and memory.
    pub prediction: Prediction,
    /// The predicted number of optimizer steps to the loss that the logged run reached.
    pub steps: f64,
}

impl Accumulation {
    /// Returns the predicted weight of all targets that the training uses; in most models, their number of tokens.
    pub fn tokens(&self) -> f64 {
        self.steps * self.batch
    }

    /// Returns the predicted duration of the training in seconds.
    pub fn seconds(&self) -> f64 {
        self.steps * self.prediction.step
    }
}

impl Measured {
    /// Predicts the trainings that reach the loss of the logged run `log` with other numbers of micro-batches: one for
    /// each number in `choices` for which the schedule has a plan. `target` has the other properties of the plan, and
    /// `noise` is the [noise scale](RunLog::noise_scale) of the run.
    ///
    /// A training with batches of weight B takes a number of steps in proportion to 1 + N / B, where N is the noise
    /// scale (McCandlish et al., 2018, [arXiv:1812.06162](https://arxiv.org/abs/1812.06162), equation 2.11, with the
    /// best learning rate for each batch).
    ///
    /// # Errors
    /// Returns the errors of [`predict`](Self::predict), except for a number of micro-batches that the schedule lacks,
    /// and [`PredictError::NoSteps`] if no step of the run updated parameters.
    pub fn accumulations(
        &self,
        log: &RunLog,
        noise: f64,
        target: &Target,
        choices: impl IntoIterator<Item = usize>,
    ) -> Result<Vec<Accumulation>, PredictError> {
        let weight = median(log.warm_steps().map(|step| step.weight)).ok_or(PredictError::NoSteps)?;
        let steps = log.steps.iter().filter(|step| step.gradient_norm.is_some()).count() as f64;
        let of_micro_batch = weight / log.plan.micro_batches() as f64;
        let mut found = Vec::new();
        for micro_batches in choices {
            let Some(prediction) = self.predict_with(target, micro_batches)? else { continue };
            let batch = of_micro_batch * micro_batches as f64;
            let steps = steps * (1.0 + noise / batch) / (1.0 + noise / weight);
            found.push(Accumulation { micro_batches, batch, prediction, steps });
        }
        Ok(found)
    }
}
