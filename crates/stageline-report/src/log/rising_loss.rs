//! Detects whether the training loss of a logged run rises, for example because the run diverges ([`RisingLoss`]).

use super::run_log::RunLog;

/// Minimum number of steps with a finite loss that a run must have before its loss can count as rising.
const FEWEST: usize = 8;

/// Threshold for a rising loss, in standard errors of the difference between two mean losses. A loss rises if its mean
/// over the second half of the run is above the mean over the first half by more than this. By chance alone, about one
/// run in 700 exceeds it.
const ERRORS: f64 = 3.0;

/// The mean losses of the first and the second half of a run whose loss rises. The log of such a run cannot show which
/// settings are best: settings are compared by the time until a training run reaches the logged run's final loss, which
/// is meaningless if the loss has risen.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "the loss of the run rises, from a mean of {first:.4} in the first half of its steps to {second:.4} in the second, so the time to \
     it says nothing; log a run whose loss falls, for example with a lower --learning-rate"
)]
pub struct RisingLoss {
    /// The mean loss over the first half of the run's steps that updated parameters and have a finite loss.
    pub first: f64,
    /// The mean loss over the second half of the run's steps that updated parameters and have a finite loss.
    pub second: f64,
}

impl RunLog {
    /// Checks whether the run's loss rises, and if so, returns the mean losses of its two halves. It rises if the
    /// second mean is above the first by more than 3 standard errors of their difference. Returns `None` if the loss
    /// does not rise, or if fewer than 8 of the steps that updated parameters have a finite loss.
    pub fn rising_loss(&self) -> Option<RisingLoss> {
        let updated = self.steps.iter().filter(|step| step.gradient_norm.is_some());
        let losses: Vec<f64> = updated.filter_map(|step| step.loss).filter(|loss| loss.is_finite()).collect();
        if losses.len() < FEWEST {
            return None;
        }
        let (first, second) = losses.split_at(losses.len() / 2);
        let ([first, error], [second, other]) = (mean_and_squared_error(first), mean_and_squared_error(second));
        (second - first > ERRORS * (error + other).sqrt()).then_some(RisingLoss { first, second })
    }
}

fn mean_and_squared_error(numbers: &[f64]) -> [f64; 2] {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
    [mean, squares / (count - 1.0) / count]
}
